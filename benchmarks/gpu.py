"""The three kinds of model on a GPU in bf16: accuracy, host synchronization, recording, compilation, speed.

    python benchmarks/gpu.py

Prints one JSON line. Ratios are ours / transformers; below 1 means ours is faster.
"""

from __future__ import annotations

import json
import statistics

import torch
import torch.nn.functional as F

import chumoku
from chumoku.models.model import Model
from chumoku.nn import MixtureOfExperts, attend, attend_fused, masks

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16


def ids_for(model: Model, batch: int, length: int) -> torch.Tensor:
    return torch.randint(model.config.vocabulary, (batch, length), device=DEVICE)


def call(model: torch.nn.Module, config: chumoku.ModelConfig, ids: torch.Tensor, mask: torch.Tensor | None = None):
    if config.kind == "encoder-decoder":
        return model(ids, ids, source_mask=mask)
    return model(ids, mask=mask)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one.detach().double() - other.detach().double()).norm() / other.detach().double().norm()
    return float(f"{float(difference):.2e}")


def check(name: str, **changes: object) -> dict[str, object]:
    """Check one model: bf16 against float64 on the same weights, no host synchronization, recording, cache."""
    config = chumoku.preset(name, **changes)
    model = chumoku.build(config, device=DEVICE, dtype=DTYPE)
    exact = chumoku.build(config, device=DEVICE, dtype=torch.float64)
    exact.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
    ids = ids_for(model, 3, 61)
    mask = masks.real_tokens(torch.tensor([61, 31, 7], device=DEVICE), 61)
    found: dict[str, object] = {}
    with torch.no_grad():
        call(model, config, ids, mask)
        torch.cuda.set_sync_debug_mode("error")
        try:
            plain, padded = call(model, config, ids), call(model, config, ids, mask)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found["no_host_sync"] = True
        found["bf16_against_float64"] = relative(plain.hidden, call(exact, config, ids).hidden)
        real = slice(None) if config.kind == "encoder-decoder" else mask
        found["padded_against_float64"] = relative(padded.hidden[real], call(exact, config, ids, mask).hidden[real])
        with chumoku.record(model) as tape:
            recorded = call(model, config, ids, mask)
        found["recorded"] = len(tape)
        found["recording_bit_identical"] = torch.equal(recorded.hidden, padded.hidden)
        if config.kind == "decoder":
            found["cached_against_float64"] = check_cache(model, exact, ids)
    return found


def check_cache(model: Model, exact: Model, ids: torch.Tensor) -> float:
    """Error of cached decoding with prompts of different lengths, without host synchronization."""
    lengths = torch.tensor([29, 17, 5], device=DEVICE)
    cache = model.new_cache(3, 61)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = model(ids[:, :29], cache=cache, lengths=lengths)
        steps = []
        for step in range(29, 37):
            out = model(ids[:, step : step + 1], cache=out.cache)
            steps.append(out.logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    errors = []
    for row, length in enumerate((29, 17, 5)):
        expected = exact(torch.cat([ids[row : row + 1, :length], ids[row : row + 1, 29:37]], 1)).logits[0, length:]
        errors.append(relative(torch.cat(steps, 1)[row], expected))
    return max(errors)


def check_attention() -> dict[str, float]:
    """attend_fused in bf16 against attend in float64, with queries that see nothing, grouped heads and biases."""
    found = {}
    for grouped in (False, True):
        for with_bias in (False, True):
            for masked in (False, True):
                q = torch.randn(2, 8, 37, 64, device=DEVICE, dtype=DTYPE, requires_grad=True)
                k, v = (torch.randn(2, 2 if grouped else 8, 37, 64, device=DEVICE, dtype=DTYPE) for _ in "kv")
                mask = torch.rand(2, 1, 37, 37, device=DEVICE) > 0.5 if masked else None
                if mask is not None:
                    mask[0, :, 3] = False
                bias = torch.randn(2, 8, 37, 37, device=DEVICE, dtype=DTYPE) if with_bias else None
                fused = attend_fused(q, k, v, mask=mask, bias=bias, causal=True)
                exact = [t.double() for t in (q, k, v)]
                plain, _ = attend(*exact, mask=mask, bias=None if bias is None else bias.double(), causal=True)
                fused.sum().backward()
                if not (fused.isfinite().all() and q.grad.isfinite().all()):
                    raise SystemExit("A query without visible keys gave NaN.")
                found[f"grouped={grouped} bias={with_bias} mask={masked}"] = relative(fused, plain)
    return found


def grouped_with_mask() -> dict[str, float]:
    """Time of one step of 32 heads over 8 × 4,096 masked keys, batch 16: key heads repeated or shared."""
    q = torch.randn(16, 32, 1, 64, device=DEVICE, dtype=DTYPE)
    k, v = (torch.randn(16, 8, 4096, 64, device=DEVICE, dtype=DTYPE) for _ in "kv")
    mask = torch.rand(16, 1, 1, 4096, device=DEVICE) > 0.5
    repeated = median_ms(lambda: attend_fused(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1), mask=mask))
    shared = median_ms(lambda: attend_fused(q, k, v, mask=mask))
    return {"repeated_ms": round(repeated, 3), "shared_ms": round(shared, 3)}


def check_experts() -> dict[str, float]:
    """Difference between the grouped product and the plain sum over experts, output and gradient, in bf16."""
    layer = MixtureOfExperts(256, 512, experts=8, per_token=2, kind="swiglu", bias=True).to(DEVICE, DTYPE)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    x = torch.randn(4, 61, 256, device=DEVICE, dtype=DTYPE, requires_grad=True)
    grouped, plain = layer(x), layer.plain(x)
    one, other = (torch.autograd.grad(out.float().square().sum(), x)[0] for out in (grouped, plain))
    return {"output": relative(grouped.detach(), plain.detach()), "gradient": relative(one, other)}


def median_ms(run, repeat: int = 20) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def speed() -> dict[str, object]:
    """Training step (forward, loss, backward) of GPT-2 124M, bf16 weights, batch 16 × 1024, eager and compiled."""
    import transformers

    config = chumoku.preset("gpt2", dropout={"embedding": 0.0, "attention": 0.0, "sublayer": 0.0})
    ours = chumoku.build(config, device=DEVICE, dtype=DTYPE).train()
    hf = transformers.GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, use_cache=False)
    theirs = transformers.GPT2LMHeadModel(hf).to(DEVICE, DTYPE).train()
    ids = torch.randint(50257, (16, 1024), device=DEVICE)

    def step(model: torch.nn.Module):
        def run():
            model.zero_grad(set_to_none=True)
            F.cross_entropy(model(ids).logits.flatten(0, 1).float(), ids.flatten()).backward()

        return run

    found: dict[str, object] = {}
    for way in ("eager", "compiled"):
        if way == "compiled":
            ours, theirs = torch.compile(ours, fullgraph=True), torch.compile(theirs)
        mine, yours = median_ms(step(ours)), median_ms(step(theirs))
        found[way] = {"ours_ms": round(mine, 2), "theirs_ms": round(yours, 2), "ratio": round(mine / yours, 3)}
        found[way]["ours_tokens_per_s"] = round(16 * 1024 / mine * 1e3)
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    result: dict[str, object] = {"benchmark": "gpu", "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, changes in {
        "bert-base": {},
        "gpt2": {},
        "transformer-base": {},
        "smollm2-135m": {},
        "tiny-decoder": {"experts": 8, "width": 256, "feedforward_width": 512},
    }.items():
        result[name + (" with experts" if "experts" in changes else "")] = check(name, **changes)
    result["relative positions"] = check("tiny-decoder", position="relative", width=256)
    result["twins"] = check_attention()
    result["experts grouped against plain"] = check_experts()
    result["grouped heads with a mask"] = grouped_with_mask()
    result["gpt2 training step"] = speed()
    print(json.dumps(result))
