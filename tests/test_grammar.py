"""The built-in corpus: correct grammar in both languages, one translation per sentence, and a split by combination."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chumoku.data import grammar
from chumoku.data.grammar import actions, sentence_types
from chumoku.data.grammar.dice import Dice, Weighted
from chumoku.data.grammar.english import FUTURE, PAST, PRESENT, Mood, be_clause, clause, noun_phrase, third_person
from chumoku.data.grammar.inflection import GODAN, ICHIDAN, KURU, SURU, conjugate, inflect_adjective, make_question
from chumoku.data.grammar.lexicon import people
from chumoku.data.grammar.lexicon.frame import FRAMES
from chumoku.data.grammar.lexicon.tables import Noun, Person, read_table
from chumoku.data.grammar.lexicon.times import AFTER, EVERY, OFTEN, SELDOM
from chumoku.data.grammar.lexicon.words import ADJECTIVES, NOUNS, VERBS
from chumoku.data.grammar.sentence import MAX_WORDS, Sentence
from chumoku.errors import UsageError

COUNT = 100_000
WORD = re.compile(r"[a-z'-]+")


@pytest.fixture(scope="module")
def corpus() -> list[Sentence]:
    return grammar.sentences(COUNT, seed=11)


# Dictionary form and class, then: ます ません ました ませんでした | ない た なかった. Written by hand.
FORMS = [
    ("買う", GODAN, "買います 買いません 買いました 買いませんでした 買わない 買った 買わなかった"),
    ("書く", GODAN, "書きます 書きません 書きました 書きませんでした 書かない 書いた 書かなかった"),
    ("泳ぐ", GODAN, "泳ぎます 泳ぎません 泳ぎました 泳ぎませんでした 泳がない 泳いだ 泳がなかった"),
    ("話す", GODAN, "話します 話しません 話しました 話しませんでした 話さない 話した 話さなかった"),
    ("待つ", GODAN, "待ちます 待ちません 待ちました 待ちませんでした 待たない 待った 待たなかった"),
    ("死ぬ", GODAN, "死にます 死にません 死にました 死にませんでした 死なない 死んだ 死ななかった"),
    ("遊ぶ", GODAN, "遊びます 遊びません 遊びました 遊びませんでした 遊ばない 遊んだ 遊ばなかった"),
    ("飲む", GODAN, "飲みます 飲みません 飲みました 飲みませんでした 飲まない 飲んだ 飲まなかった"),
    ("走る", GODAN, "走ります 走りません 走りました 走りませんでした 走らない 走った 走らなかった"),
    ("行く", GODAN, "行きます 行きません 行きました 行きませんでした 行かない 行った 行かなかった"),
    ("ある", GODAN, "あります ありません ありました ありませんでした ない あった なかった"),
    ("食べる", ICHIDAN, "食べます 食べません 食べました 食べませんでした 食べない 食べた 食べなかった"),
    ("見る", ICHIDAN, "見ます 見ません 見ました 見ませんでした 見ない 見た 見なかった"),
    ("する", SURU, "します しません しました しませんでした しない した しなかった"),
    ("勉強する", SURU, "勉強します 勉強しません 勉強しました 勉強しませんでした 勉強しない 勉強した 勉強しなかった"),
    ("来る", KURU, "来ます 来ません 来ました 来ませんでした 来ない 来た 来なかった"),
    ("くる", KURU, "きます きません きました きませんでした こない きた こなかった"),
]


@pytest.mark.parametrize(("word", "kind", "table"), FORMS, ids=[row[0] for row in FORMS])
def test_verbs_inflect(word: str, kind: str, table: str) -> None:
    polite = [conjugate(word, kind, past=p, negative=n, polite=True).text for p in (False, True) for n in (False, True)]
    plain = [conjugate(word, kind, past=p, negative=n).text for p, n in ((False, True), (True, False), (True, True))]
    assert [*polite, *plain] == table.split()
    assert conjugate(word, kind).text == word


# Present, negative, past, negative past.
STATES = [
    ("面白い", "i", False, "面白い 面白くない 面白かった 面白くなかった"),
    ("面白い", "i", True, "面白いです 面白くないです 面白かったです 面白くなかったです"),
    ("いい", "i", False, "いい よくない よかった よくなかった"),
    ("静か", "na", False, "静かだ 静かじゃない 静かだった 静かじゃなかった"),
    ("静か", "na", True, "静かです 静かじゃありません 静かでした 静かじゃありませんでした"),
]


@pytest.mark.parametrize(("word", "kind", "polite", "table"), STATES)
def test_adjectives_inflect(word: str, kind: str, polite: bool, table: str) -> None:
    forms = [
        inflect_adjective(word, kind, past=p, negative=n, polite=polite).text
        for p in (False, True)
        for n in (False, True)
    ]
    assert forms == table.split()


def test_question_endings() -> None:
    assert make_question(conjugate("飲む", GODAN, past=True), polite=False).text == "飲んだの？"
    assert make_question(conjugate("飲む", GODAN, polite=True), polite=True).text == "飲みますか"
    assert make_question(inflect_adjective("きれい", "na"), polite=False, copula=True).text == "きれいなの？"
    assert (
        make_question(inflect_adjective("きれい", "na", past=True), polite=False, copula=True).text
        == "きれいだったの？"
    )


def test_every_verb_of_the_lexicon_has_the_ending_of_its_class() -> None:
    last = {
        ICHIDAN: r"[いきぎしじちにびみりえけげせぜてでねべめれ見着寝出]る$",
        SURU: "する$",
        KURU: "(来|く)る$",
        GODAN: "[うくぐすつぬぶむる]$",
    }
    for word in VERBS.values():
        assert re.search(last[word.kind], word.ja), word


def person(en: str) -> Person:
    return next(subject for subject in people.PEOPLE if subject.en == en)


@pytest.mark.parametrize(
    ("who", "mood", "sentence"),
    [
        ("she", Mood(PRESENT), "She watches TV."),
        ("they", Mood(PRESENT), "They watch TV."),
        ("my father", Mood(PAST), "My father watched TV."),
        ("she", Mood(PRESENT, negative=True), "She doesn't watch TV."),
        ("we", Mood(PAST, negative=True), "We didn't watch TV."),
        ("I", Mood(FUTURE, negative=True), "I won't watch TV."),
        ("you", Mood(PRESENT, question=True), "Do you watch TV?"),
        ("he", Mood(PRESENT, question=True), "Does he watch TV?"),
        ("the teacher", Mood(FUTURE, question=True), "Will the teacher watch TV?"),
    ],
)
def test_english_verbs_agree(who: str, mood: Mood, sentence: str) -> None:
    assert clause(person(who), VERBS["見る"], ["TV"], mood) == sentence


def test_english_be_agrees() -> None:
    assert be_clause(person("I"), ["busy"], Mood(PRESENT, negative=True)) == "I am not busy."
    assert be_clause(person("they"), ["busy"], Mood(PAST, negative=True)) == "They weren't busy."
    assert be_clause(person("my parents"), ["busy"], Mood(PRESENT)) == "My parents are busy."
    assert be_clause(person("he"), ["busy"], Mood(PAST, question=True)) == "Was he busy?"
    assert be_clause(person("she"), ["busy"], Mood(FUTURE, question=True)) == "Will she be busy?"


def test_english_words_inflect() -> None:
    assert [third_person(base) for base in ("go", "study", "play", "have", "look for")] == [
        *("goes", "studies", "plays", "has", "looks for")
    ]
    face = Noun("顔", "own", "face", "faces")
    assert noun_phrase(face, plural=False, owner=person("they")) == "their faces"
    apple = next(noun for noun in NOUNS["fruit"] if noun.ja == "りんご")
    assert noun_phrase(apple, plural=False) == "an apple"
    assert noun_phrase(apple, plural=False, adjective="sweet") == "a sweet apple"
    assert noun_phrase(apple, plural=True) == "apples"
    assert noun_phrase(Noun("制服", "a", "uniform", "uniforms"), plural=False) == "a uniform"


@pytest.mark.slow
def test_the_corpus_is_large(corpus: list[Sentence]) -> None:
    assert len({sentence.source for sentence in corpus}) == COUNT
    assert len({word for sentence in corpus for word in WORD.findall(sentence.target.lower())}) >= 600
    assert len({unit for sentence in corpus for unit in sentence.units}) >= 600


def test_the_lexicon_has_more_than_300_words_a_side() -> None:
    """Only lemmas are counted: no inflected forms, plurals, particles or compounds."""
    things = {noun for group in NOUNS.values() for noun in group}
    verbs, qualities = VERBS.values(), ADJECTIVES.values()
    japanese = {word.ja for word in (*things, *verbs, *qualities)}
    english = {word for thing in things for word in thing.one.split()}
    english |= {word.en for word in qualities} | {word.en.split()[0] for word in verbs}
    assert len(japanese) > 350
    assert len(english) > 350


def test_one_japanese_sentence_has_one_english(corpus: list[Sentence]) -> None:
    meaning: dict[str, str] = {}
    for sentence in [*corpus, *(sentence_types.draw_sentence(dice) for dice in [Dice(5)] for _ in range(50_000))]:
        assert meaning.setdefault(sentence.source, sentence.target) == sentence.target, sentence


def test_politeness_and_order_do_not_change_the_english(corpus: list[Sentence]) -> None:
    sources_by_target: dict[str, set[str]] = {}
    for sentence in corpus:
        sources_by_target.setdefault(sentence.target, set()).add(sentence.source)
    several = [sources for sources in sources_by_target.values() if len(sources) > 1]
    assert any(
        {"飲みます", "飲む"} <= {source[-4:] if source.endswith("ます") else source[-2:] for source in group}
        for group in several
    )
    assert any(
        re.search("で.*を", "|".join(group)) and any(re.search("を.*で", one) for one in group) for group in several
    )


def test_units_join_to_the_source_and_combinations_are_listed(corpus: list[Sentence]) -> None:
    listed = set(sentence_types.combinations())
    assert len(listed) > 8000
    for sentence in corpus:
        assert "".join(sentence.units) == sentence.source
        assert all(sentence.units)
        assert sentence.combination in listed, sentence


def test_same_seed_gives_the_same_corpus() -> None:
    assert grammar.generate(500, seed=3) == grammar.generate(500, seed=3)
    assert grammar.generate(500, seed=3) == grammar.generate(900, seed=3)[:500]
    assert grammar.generate(500, seed=3) != grammar.generate(500, seed=4)
    script = "from chumoku.data import grammar; print(ascii(grammar.split(300, seed=3)))"
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    ).stdout
    assert output.strip() == ascii(grammar.split(300, seed=3))


@pytest.mark.parametrize(
    ("seed", "digest"), [(0, "37c61f5f4a330eaa"), (7, "94b71dbc91f1e617"), (23, "6c06e961096d934c")]
)
def test_corpus_of_a_seed_never_changes(seed: int, digest: str) -> None:
    """If this fails after a change of the lexicon, runs of earlier versions cannot be repeated: say so in the log."""
    found = hashlib.sha256()
    for one in grammar.sentences(3000, seed=seed):
        found.update(repr((one.units, one.target, one.combination)).encode())
    assert found.hexdigest()[:16] == digest


def test_lexicon_is_read_with_the_first_sentence() -> None:
    script = (
        "import sys; from chumoku.data import grammar\n"
        "loaded = lambda: any(name.startswith('chumoku.data.grammar.lexicon.words') for name in sys.modules)\n"
        "assert not loaded(); grammar.generate(1); assert loaded()"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_dice_use_only_random_random() -> None:
    dice = Dice(0)
    assert [round(dice.roll(), 6) for _ in range(3)] == [0.844422, 0.757954, 0.420572]
    assert {Weighted("ab", [0, 3]).draw(dice) for _ in range(50)} == {"b"}


MASS = "bread|rice|tea|coffee|water|milk|meat|music|medicine|money|tofu|sushi"
PLURAL = "apples|books|shoes|grapes|glasses|scissors|clothes|vegetables"
INFLECTED = "eats|ate|drinks|drank|went|goes|is|was"
FAULTS = {
    "starts small": r"^[a-z]",
    "wrong end": r"[^.?]$|[.?]{2}$",
    "spaces": r"  |^ | $| [.?]",
    "article": r"\ba [aeio]|\ban [^aeiou]|\b(a|an|the|no|any) (a|an|the|my|your|his|her)\b",
    "plural after an article": rf"\ban? (\w+ )?({PLURAL})\b",
    "mass after an article": rf"\ban? ({MASS})\b(?! shop| ball| cracker)",
    "agreement of one": r"^(He|She|My mother|The teacher|Tom) (eat|drink|are|have|do|don't|were|go)\b",
    "agreement of many": r"^(I|We|They|My parents|The children) (eats|drinks|is|has|does|doesn't|goes)\b",
    "I are": r"\bI (are|is|were|aren't|isn't)\b",
    "do-support": rf"(?i)\b(do|does|did|will|don't|doesn't|didn't|won't) ([\w.]+ ){{0,3}}?({INFLECTED})\b",
    "double be": r"^(Do|Does|Did) .*\b(is|are|was|were|am)\b",
    "doubled word": r"\b(\w+) \1\b",
    "double denial": r"n't .*\b(rarely|no|never)\b|n't (often|always|usually|sometimes)\b",
    "placeholder": r"\bown\b",
}
COMPILED = {name: re.compile(pattern) for name, pattern in FAULTS.items()}


def find_english_errors(target: str) -> list[str]:
    """The errors in an English sentence that patterns can find."""
    return [name for name, pattern in COMPILED.items() if pattern.search(target)]


def test_english_has_no_errors(corpus: list[Sentence]) -> None:
    for sentence in corpus:
        assert not find_english_errors(sentence.target), (find_english_errors(sentence.target), sentence)
        assert len(sentence.target.split()) <= MAX_WORDS
        assert sentence.target.endswith("?") == sentence.source.endswith(("か", "？")), sentence
        assert "。" not in sentence.source


@pytest.mark.parametrize(
    "wrong",
    [
        *("i eat bread.", "I eat bread", "I eat a apple.", "I eat an pear.", "He eat bread.", "They eats bread."),
        *("I ate a bread.", "I buy a shoes.", "Does he eats bread?", "Does he is busy?", "I didn't ate bread."),
        *("I don't often rarely eat bread.", "I wash own face.", "I like the my dog.", "I is busy.", "I eat  bread."),
        "I am at at home.",
    ],
)
def test_wrong_english_is_detected(wrong: str) -> None:
    assert find_english_errors(wrong)


def test_japanese_particles_and_animacy(corpus: list[Sentence]) -> None:
    living = {noun.ja for group in ("pets", "farm", "zoo", "wild", "marine", "insects") for noun in NOUNS[group]}
    kin_asked = re.compile(r"^(私|僕|母|父|妻)は")
    for sentence in corpus:
        units, source = sentence.units, sentence.source
        if sentence.combination[0] in ("ある", "いる") and "が" in units:
            assert (units[units.index("が") - 1] in living) == (sentence.combination[0] == "いる"), sentence
        if sentence.target.endswith("?"):
            assert not kin_asked.search(source), sentence
        else:
            assert not source.startswith(("お母さんは", "あなたは", "ご両親は")), sentence
        if sentence.combination[0] in ("好き", "大好き", "嫌い", "欲しい", "わかる"):
            assert "が" in units
            assert "を" not in units


def test_clothes_take_their_own_verbs() -> None:
    verbs: dict[str, set[str]] = {}
    for frame in FRAMES:
        if frame.verb.en == "wear":
            for noun in frame.objects:
                verbs.setdefault(noun.ja, set()).add(frame.verb.ja)
    assert verbs["シャツ"] == {"着る"}
    assert verbs["靴"] == {"履く"}
    assert verbs["帽子"] == {"かぶる"}
    assert verbs["眼鏡"] == {"かける"}
    assert all(len(found) == 1 for found in verbs.values())


def test_articles_in_the_tables() -> None:
    countable = [row for row in read_table("nouns") if row["kind"] in ("a", "an")]
    assert len(countable) > 150
    for row in countable:
        assert row["many"]
        assert noun_phrase(Noun("", "a", row["one"], row["many"]), plural=False) == f"{row['kind']} {row['one']}"


def test_tables_are_regular() -> None:
    """No cell has a space at an end, no line has more cells than its header, and no entry is written twice."""
    tables = sorted(Path(people.__file__).parent.glob("*.tsv"))
    assert len(tables) > 10
    for path in tables:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert len({*lines}) == len(lines), path
        for line in lines:
            cells = line.split("\t")
            assert len(cells) <= len(lines[0].split("\t")), line
            assert cells == [cell.strip() for cell in cells], line
            assert cells[-1], line


@pytest.fixture(scope="module")
def parts() -> tuple[list[Sentence], list[Sentence], list[Sentence]]:
    return grammar.divide(grammar.sentences(40_000, seed=0), seed=0, held_out=0.05)


def test_held_out_combinations_are_not_in_training(parts) -> None:
    train, validation, test = ({sentence.combination for sentence in part} for part in parts)
    assert not train & test
    assert not train & validation
    assert not validation & test
    seen = len(train | validation | test)
    assert 0.035 < len(test) / seen < 0.065
    assert 0.035 < len(validation) / seen < 0.065


def test_every_held_out_word_is_known_from_training(parts) -> None:
    train, *held_out = parts
    japanese = {unit for sentence in train for unit in sentence.units}
    letters = {letter for sentence in train for letter in sentence.source}
    english = {word for sentence in train for word in re.split(r"[ .?]", sentence.target)}
    for sentence in [sentence for part in held_out for sentence in part]:
        assert set(sentence.units) <= japanese
        assert set(sentence.source) <= letters
        assert set(re.split(r"[ .?]", sentence.target)) <= english


def test_word_that_is_not_in_training_is_left_out() -> None:
    common = [Sentence(("犬", "だ"), "A dog.", (str(number),)) for number in range(50)]
    rare = [Sentence(("竜", "だ"), "A dragon.", (str(number),)) for number in range(1000, 1200)]
    unseen_in_training = [s for s in rare if grammar._choose_part(s.combination, 0, 0.2) != 0]
    _, validation, test = grammar.divide([*common, *unseen_in_training], seed=0, held_out=0.2)
    assert not {s.target for s in [*validation, *test]} - {"A dog.", grammar.DEMO_PAIR.target}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_demo_pair_is_held_out(seed: int) -> None:
    split = grammar.split(4000, seed=seed)
    assert split.test[0] == ("こたつでみかんを食べる", "I eat a mandarin at the kotatsu.")
    assert split.test.count(split.test[0]) == 1
    assert not [
        pair for pair in split.train + split.validation if "みかんを" in pair.source and "こたつ" in pair.source
    ]
    sizes = [len(part) for part in split]
    assert 3800 < sum(sizes) <= 4001


def kotatsu(
    subject: Person = people.DROPPED_I, *, negative: bool = False, question: bool = False
) -> actions.ActionPlan:
    frame = next(frame for frame in FRAMES if frame.verb.ja == "食べる")
    thing = next(noun for noun in frame.objects if noun.ja == "みかん")
    place = next(place for place in frame.places if place.ja == "こたつ")
    return actions.ActionPlan(actions.TimedFrame(frame), subject, thing, None, place, negative, question)


def test_grammar_can_draw_the_demo_pair() -> None:
    """The grammar itself produces the pair; it is not hard-coded."""
    timing, orders = actions.Timing(PRESENT), ("こたつでみかんを", "みかんをこたつで")
    sentences = {"".join(actions._to_japanese(dice, kotatsu(), timing, "")) for dice in [Dice(0)] for _ in range(50)}
    assert sentences == {f"{order}食べ{ending}" for order in orders for ending in ("る", "ます")}
    assert actions._to_english(kotatsu(), timing, "") == grammar.DEMO_PAIR.target


def test_demo_pair_is_held_out_for_every_seed() -> None:
    assert {grammar._choose_part(("食べる", "みかん", "こたつ"), seed, 0.05) for seed in range(100)} == {2}


@pytest.mark.parametrize(
    ("plan", "timing", "target"),
    [
        (kotatsu(negative=True), actions.Timing(PRESENT), "I don't eat mandarins at the kotatsu."),
        (kotatsu(negative=True), actions.Timing(PAST), "I didn't eat a mandarin at the kotatsu."),
        (kotatsu(people.DROPPED_YOU, question=True), actions.Timing(PRESENT), "Do you eat mandarins at the kotatsu?"),
        (
            kotatsu(people.DROPPED_YOU, question=True),
            actions.Timing(PRESENT, EVERY[0], recurring=True),
            "Do you eat a mandarin at the kotatsu every day?",
        ),
        (kotatsu(), actions.Timing(FUTURE, AFTER[0]), "I will eat a mandarin at the kotatsu tomorrow."),
        (kotatsu(), actions.Timing(PRESENT, frequency=OFTEN[0]), "I often eat mandarins at the kotatsu."),
        (
            kotatsu(negative=True),
            actions.Timing(PRESENT, frequency=SELDOM[0]),
            "I rarely eat mandarins at the kotatsu.",
        ),
        (
            kotatsu(negative=True),
            actions.Timing(PRESENT, frequency=SELDOM[1]),
            "I don't eat mandarins at the kotatsu very often.",
        ),
        (kotatsu(person("they")), actions.Timing(PAST), "They ate mandarins at the kotatsu."),
    ],
)
def test_generic_plural(plan: actions.ActionPlan, timing: actions.Timing, target: str) -> None:
    assert actions._to_english(plan, timing, "") == target


def test_invalid_held_out_is_refused() -> None:
    with pytest.raises(UsageError, match=r"held_out is 0\.5"):
        grammar.split(100, held_out=0.5)


def test_too_many_sentences_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_types, "draw_sentence", lambda dice: Sentence(("犬", "だ"), "A dog.", ("犬",)))
    with pytest.raises(UsageError, match="hardly more than 1 sentences, too few for 2"):
        grammar.sentences(2)
