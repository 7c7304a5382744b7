"""M2M100's tokenizer: a SentencePiece model, a table of ids, and a token for each language after them.

    sentencepiece.bpe.model     how a text is split into pieces
    vocab.json                  piece → id
    __af__ … __zu__             the next ids, in the order of LANGUAGES

A source is __ja__ text </s>. A piece without an id is left out; the reference gives <unk> for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from chumoku.text.backend import set_prefix_and_suffix
from chumoku.text.formats import sentencepiece as sp

MODEL, VOCABULARY = "sentencepiece.bpe.model", "vocab.json"
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
        "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns "
        "oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh "
        "zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
DEFAULT = "en"  # of the source


def m2m100_backend(model: bytes, vocabulary: bytes, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The backend of M2M100's files; `settings` is the content of tokenizer_config.json."""
    codes = LANGUAGES.get(settings.get("language_codes") or "m2m100", "").split()
    table, languages = sp.pieces_by_id(vocabulary), [f"__{code}__" for code in codes]
    if not set(SPECIALS) <= set(table) or not languages:
        raise ValueError(f"{VOCABULARY} lacks one of {', '.join(SPECIALS)}, or language_codes is not known")
    parsed = sp.read_model(model)
    known = {piece.text: piece for piece in parsed.pieces if piece.kind in (sp.NORMAL, sp.USER, sp.BYTE)}
    kinds = {**dict.fromkeys((*SPECIALS, *languages), sp.CONTROL), "<unk>": sp.UNKNOWN}
    pieces = [
        sp.Piece(text, 0.0, kinds[text]) if text in kinds else known.get(text, sp.Piece(text, 0.0, sp.UNUSED))
        for text in (*table, *languages)
    ]
    backend = sp.build_backend(parsed._replace(pieces=pieces))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in kinds])
    source = f"__{settings.get('src_lang') or DEFAULT}__"
    set_prefix_and_suffix(backend, [source] if source in languages else [], ["</s>"])
    return backend
