"""The languages of a translator: the tokens around a source, and those that a translation begins with.

    source                  translation
    <2en> text </s>         <s> …                  ours, and >>en<< of Marian: the target language, before the source
    jpn_Jpan text </s>      </s> eng_Latn …        NLLB, M2M100 (__ja__), mBART-50 (ja_XX)
    text </s> ja_XX         en_XX …                mBART, where a translation begins with its language

In the second and third row, a text has the token of its own language (`Roles.text_languages`). The default language of
a source is that of the tokenizer's own template; that of a translation is `Roles.forced_begin`.
"""

from __future__ import annotations

from collections.abc import Mapping

from chumoku.errors import UsageError
from chumoku.text.special_tokens import find_language
from chumoku.text.tokenizer import Tokenizer, with_prefix_and_suffix, with_roles


def source_frame(
    tokenizer: Tokenizer, *, into: str | None = None, source_language: str | None = None
) -> tuple[list[int], list[int]]:
    """The tokens before and after a source."""
    roles = tokenizer.roles
    if not roles.text_languages:
        if source_language is not None:
            raise UsageError("This model has no tokens for source languages. Leave source_language (--from) out.")
        return tokenizer.encode("", language=into or tokenizer.target_language, source=True), roles.end_tokens
    code = source_language or default_source_language(tokenizer)
    if code is None:
        raise _missing_language(roles.text_languages, "that the text is in: source_language (--from)")
    language = find_language(roles.text_languages, code)
    if any(token in roles.text_languages.values() for token in tokenizer.prefix_and_suffix[1]):
        return [], [*roles.end_tokens, language]
    return [language], roles.end_tokens


def target_prompt(tokenizer: Tokenizer, into: str | None = None) -> list[int]:
    """The tokens that a translation begins with, which are not generated."""
    roles = tokenizer.roles
    if roles.begin is None or not roles.text_languages:
        return [] if roles.begin is None else [roles.begin]
    code = into or default_target_language(tokenizer)
    if code is None:
        raise _missing_language(roles.text_languages, "to translate into: into (--into)")
    language = find_language(roles.text_languages, code)
    return [language] if roles.begin in roles.text_languages.values() else [roles.begin, language]


def default_source_language(tokenizer: Tokenizer) -> str | None:
    """The language of the token that the tokenizer's template has around a text."""
    before, after = tokenizer.prefix_and_suffix
    return _language_of(tokenizer, *before, *after, tokenizer.roles.source_begin)


def default_target_language(tokenizer: Tokenizer) -> str | None:
    """The language that is translated into if none is given."""
    if not tokenizer.roles.text_languages:
        return tokenizer.target_language
    return _language_of(tokenizer, tokenizer.roles.forced_begin, tokenizer.roles.begin)


def source_languages(tokenizer: Tokenizer) -> list[str]:
    """The languages of sources that the tokenizer has a token for, with the default first."""
    default = default_source_language(tokenizer)
    return sorted(tokenizer.roles.text_languages, key=lambda code: (code != default, code))


def target_languages(tokenizer: Tokenizer) -> list[str]:
    """The languages that can be translated into, with the default first."""
    default = default_target_language(tokenizer)
    known = tokenizer.roles.text_languages or tokenizer.roles.languages
    return sorted(known, key=lambda code: (code != default, code))


def with_target_language(tokenizer: Tokenizer, code: str) -> Tokenizer:
    """A copy of a translator's tokenizer that translates into this language by default."""
    if tokenizer.roles.text_languages:
        return with_roles(tokenizer, {"forced_begin": find_language(tokenizer.roles.text_languages, code)})
    before, after = tokenizer.encode("", language=code), tokenizer.prefix_and_suffix[1]
    return with_prefix_and_suffix(tokenizer, list(map(tokenizer.token, before)), list(map(tokenizer.token, after)))


def _language_of(tokenizer: Tokenizer, *tokens: int | None) -> str | None:
    codes = {token: code for code, token in tokenizer.roles.text_languages.items()}
    return next((codes[token] for token in tokens if token in codes), None)


def _missing_language(known: Mapping[str, int], what: str) -> UsageError:
    return UsageError(f"This model knows {len(known)} languages. Give the one {what}. It has {', '.join(known)}.")
