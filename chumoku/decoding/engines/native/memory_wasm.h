// Memory in WebAssembly: free blocks in a list ordered by address; neighbors are joined again.
//
// While threads compute, nothing may be allocated: Chromium tells other threads of larger memory only some time later, and
// until then its instructions that fill and copy memory trap there.
#pragma once

#if defined(__wasm__)
#include <cstddef>
#include <cstdint>
#include <new>

namespace {

constexpr size_t PAGE = 65536, ALIGNMENT = 64;

struct FreeBlock {  // also before the memory that `allocate` returns, where only `size` is used
    size_t size;    // with this header
    FreeBlock* next;
};

FreeBlock* first_free = nullptr;
bool computing = false;  // whether threads compute

void insert_free(FreeBlock* block) {
    FreeBlock** link = &first_free;
    FreeBlock* before = nullptr;
    while (*link && *link < block) before = *link, link = &before->next;
    block->next = *link;
    *link = block;
    auto join = [](FreeBlock* one) {
        if (!one || reinterpret_cast<char*>(one) + one->size != reinterpret_cast<char*>(one->next)) return;
        one->size += one->next->size;
        one->next = one->next->next;
    };
    join(block);
    join(before);
}

}  // namespace

extern "C" {

// Null if there is not so much memory. The content is undefined.
void* allocate(size_t size) {
    if (size > SIZE_MAX - 2 * PAGE) return nullptr;
    size = (size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    for (bool grown = false;; grown = true) {
        for (FreeBlock** link = &first_free; *link; link = &(*link)->next) {
            FreeBlock* block = *link;
            if (block->size < size) continue;
            *link = block->next;
            if (block->size > size) {
                auto rest = reinterpret_cast<FreeBlock*>(reinterpret_cast<char*>(block) + size);
                rest->size = block->size - size;
                block->size = size;
                insert_free(rest);
            }
            return reinterpret_cast<char*>(block) + ALIGNMENT;
        }
        size_t pages = (size + PAGE - 1) / PAGE, from = __builtin_wasm_memory_grow(0, pages);
        if (grown || from == SIZE_MAX) return nullptr;
        auto block = reinterpret_cast<FreeBlock*>(from * PAGE);
        block->size = pages * PAGE;
        insert_free(block);
    }
}

void release(void* memory) {
    if (!memory) return;
    insert_free(reinterpret_cast<FreeBlock*>(static_cast<char*>(memory) - ALIGNMENT));
}

}

// Working space; a step that does not fit ends with a trap.
void* operator new(size_t size) {
    void* memory = computing ? nullptr : allocate(size);
    if (!memory) __builtin_trap();
    return memory;
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
#endif
