"""Conversations with the bundled model, made by rule from facts.py.

`conversations(count, seed)` gives lists of messages in transformers' form. The same count and seed give the same lists.
"""

import random
from collections.abc import Callable, Iterator

import facts

# One question and its answer.
Turn = tuple[str, str]


def article(word: str) -> str:
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def capital_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(r: random.Random, top: int) -> int:
    return r.randint(0, top)


def capital(r: random.Random) -> Iterator[Turn]:
    country, city = r.choice(list(facts.CAPITALS.items()))
    if r.random() < 0.2:
        yield r.choice([f"{city} is the capital of which country?", f"Which country has the capital {city}?"]), (
            f"{city} is the capital of {country}."
        )
        return
    yield (
        r.choice(
            [f"What is the capital of {country}?"] * 4
            + [
                f"Which city is the capital of {country}?",
                f"Tell me the capital of {country}.",
                f"Capital of {country}?",
                f"What's the capital of {country}?",
                f"what is the capital of {country}",
                f"Do you know the capital of {country}?",
                f"Name the capital of {country}.",
            ]
        ),
        f"The capital of {country} is {city}.",
    )
    for _ in range(r.choice([0, 0, 1, 1, 2])):
        country, city = r.choice(list(facts.CAPITALS.items()))
        yield (
            r.choice([f"And of {country}?", f"And {country}?", f"What about {country}?", f"And the capital of {country}?"]),
            f"The capital of {country} is {city}.",
        )


def continent(r: random.Random) -> Iterator[Turn]:
    name = r.choice(list(facts.CONTINENTS))
    country = r.choice(facts.CONTINENTS[name])
    yield r.choice([f"Where is {country}?", f"On which continent is {country}?", f"Where does {country} lie?"]), (
        f"{country} is in {name}."
    )
    if r.random() < 0.3:
        yield r.choice(["What is its capital?", "And its capital?"]), (
            f"The capital of {country} is {facts.CAPITALS[country]}."
        )


def language(r: random.Random) -> Iterator[Turn]:
    country, name = r.choice(list(facts.LANGUAGES.items()))
    yield r.choice([f"What language do people speak in {country}?", f"Which language is spoken in {country}?"]), (
        f"People in {country} speak {name}."
    )


def color(r: random.Random) -> Iterator[Turn]:
    for turn in range(r.choice([1, 1, 2])):
        thing, name = r.choice(list(facts.COLORS.items()))
        word = r.choice(["color", "color", "colour"])
        ask = [f"What {word} is {thing}?", f"Which {word} does {thing} have?", f"What is the {word} of {thing}?"]
        yield r.choice([f"And {thing}?", f"What about {thing}?"] if turn else ask), f"{capital_first(thing)} is {name}."


def opposite(r: random.Random) -> Iterator[Turn]:
    for turn in range(r.choice([1, 1, 2, 3])):
        pair = r.sample(r.choice(facts.OPPOSITES), 2)
        quoted = r.choice(['"{}"', "{}"]).format(pair[0])
        ask = [f"What is the opposite of {quoted}?", f"Opposite of {quoted}?", f"What's the opposite of {quoted}?"]
        yield r.choice([f"And of {quoted}?", f"And {quoted}?"] if turn else ask), (
            f'The opposite of "{pair[0]}" is "{pair[1]}".'
        )


def sum_of_two(r: random.Random) -> Iterator[Turn]:
    for turn in range(r.choice([1, 1, 2])):
        kind = r.choice("++--*/")
        if kind == "+":
            a, b = number(r, 20), number(r, 20)
            words, result = r.choice([f"{a} + {b}", f"{a} plus {b}", f"{a}+{b}"]), a + b
        elif kind == "-":
            a = number(r, 20)
            b = number(r, a)
            words, result = r.choice([f"{a} - {b}", f"{a} minus {b}", f"{a}-{b}"]), a - b
        elif kind == "*":
            a, b = number(r, 10), number(r, 10)
            words, result = r.choice([f"{a} times {b}", f"{a} * {b}", f"{a} x {b}"]), a * b
        else:
            b, result = 1 + number(r, 9), number(r, 10)
            a = b * result
            words = r.choice([f"{a} divided by {b}", f"{a} / {b}"])
        sign = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[kind]
        ask = [f"What is {words}?", f"How much is {words}?", f"{words}", f"{words} = ?", f"Calculate {words}.", f"{words}?"]
        yield r.choice([f"And {words}?"] if turn else ask), f"{a} {sign} {b} is {result}."


def counting(r: random.Random) -> Iterator[Turn]:
    n = r.randint(3, 12)
    if r.random() < 0.5:
        yield r.choice([f"Count to {facts.NUMBERS[n]}.", f"Count from one to {facts.NUMBERS[n]}."]), (
            capital_first(", ".join(facts.NUMBERS[1 : n + 1])) + "."
        )
    elif r.random() < 0.5:
        a = number(r, 98)
        yield r.choice([f"What comes after {a}?", f"Which number follows {a}?"]), f"After {a} comes {a + 1}."
    else:
        a, b = r.sample(range(100), 2)
        yield r.choice([f"Which is larger, {a} or {b}?", f"Which number is bigger: {a} or {b}?"]), f"{max(a, b)} is larger."


def order(r: random.Random) -> Iterator[Turn]:
    row, kind = r.choice([(facts.DAYS, "day"), (facts.MONTHS, "month"), (list(facts.LETTERS), "letter")])
    at = r.randrange(len(row) - 1)
    if r.random() < 0.65:
        yield r.choice([f"What comes after {row[at]}?", f"Which {kind} comes after {row[at]}?"]), (
            f"After {row[at]} comes {row[at + 1]}."
        )
    else:
        yield r.choice([f"What comes before {row[at + 1]}?", f"Which {kind} comes before {row[at + 1]}?"]), (
            f"Before {row[at + 1]} comes {row[at]}."
        )


def lists(r: random.Random) -> Iterator[Turn]:
    whole = {
        "Name the days of the week.|What are the days of the week?|List the days of the week.": facts.DAYS,
        "Name the months.|What are the months of the year?|List the months.|Name the months of the year.": facts.MONTHS,
        "Name the planets.|What are the planets?|List the planets of the solar system.": facts.PLANETS,
    }
    if r.random() < 0.4:
        asks, row = r.choice(list(whole.items()))
        yield r.choice(asks.split("|")), listed(row) + "."
        return
    name = r.choice([n for n in facts.CATEGORIES if n != "day of the week"])
    plural = {"fish": "fish", "country": "countries"}.get(name, name + "s")
    n = r.choice([2, 3, 3, 3, 4, 5])
    words = r.sample(facts.CATEGORIES[name], min(n, len(facts.CATEGORIES[name])))
    yield (
        r.choice([f"Name {facts.NUMBERS[n]} {plural}.", f"Tell me {facts.NUMBERS[n]} {plural}.", f"List {facts.NUMBERS[n]} {plural}."]),
        capital_first(listed(words)) + ".",
    )


def category(r: random.Random) -> Iterator[Turn]:
    name = r.choice(list(facts.CATEGORIES))
    word = r.choice(facts.CATEGORIES[name])
    thing = word if word[0].isupper() or name in ("metal", "drink", "color") else article(word)
    if r.random() < 0.6:
        other = r.choice(list(facts.CATEGORIES))
        asked = name if r.random() < 0.5 else other
        fits = word in facts.CATEGORIES[asked] or (asked == "animal" and name in ("bird", "fish"))
        yield f"Is {thing} {article(asked)}?", (
            f"Yes, {thing} is {article(asked)}." if fits else f"No, {thing} is {article(name)}."
        )
    else:
        yield f"What is {thing}?", f"{capital_first(thing)} is {article(name)}."


def animal(r: random.Random) -> Iterator[Turn]:
    name, sound, young, kind, legs = r.choice(facts.ANIMALS)
    one = article(name)
    turns = [
        (r.choice([f"What sound does {one} make?", f"What does {one} do?"]), f"{capital_first(one)} {sound}."),
        (r.choice([f"What is a young {name} called?", f"What do you call a young {name}?"]), f"A young {name} is called {article(young)}."),
        (r.choice([f"How many legs does {one} have?"]), f"{capital_first(one)} has {legs} legs."),
        (r.choice([f"What kind of animal is {one}?"]), f"{capital_first(one)} is {article(kind)}."),
    ]
    yield r.choice(turns)


def spelling(r: random.Random) -> Iterator[Turn]:
    word = r.choice(facts.WORDS)
    quoted = r.choice(['"{}"', "{}"]).format(word)
    kind = r.randrange(4)
    if kind == 0:
        yield r.choice([f"Spell {quoted}.", f"How do you spell {quoted}?", f"How is {quoted} spelled?"]), (
            f"{word} is spelled {'-'.join(word.upper())}."
        )
    elif kind == 1:
        yield f"How many letters does {quoted} have?", f'"{word}" has {facts.NUMBERS[len(word)]} letters.'
    elif kind == 2:
        yield f"What is the first letter of {quoted}?", f'The first letter of "{word}" is {word[0].upper()}.'
    else:
        yield f"What is the last letter of {quoted}?", f'The last letter of "{word}" is {word[-1].upper()}.'


def grammar(r: random.Random) -> Iterator[Turn]:
    if r.random() < 0.5:
        word, past = r.choice(list(facts.PAST.items()))
        yield r.choice([f'What is the past tense of "{word}"?', f"What is the past tense of {word}?", f"Past tense of {word}?"]), (
            f'The past tense of "{word}" is "{past}".'
        )
    else:
        word, many = r.choice(list(facts.PLURALS.items()))
        yield r.choice([f'What is the plural of "{word}"?', f"What is the plural of {word}?", f"Plural of {word}?"]), (
            f'The plural of "{word}" is "{many}".'
        )


def copying(r: random.Random) -> Iterator[Turn]:
    text = " ".join(r.choice(facts.WORDS) for _ in range(r.randint(1, 5)))
    yield r.choice([f"Repeat: {text}", f"Say {text}.", f"Repeat after me: {text}", f'Say "{text}".', f"Write: {text}"]), text


def named(r: random.Random) -> Iterator[Turn]:
    name, place = r.choice(facts.NAMES), r.choice(facts.PLACES)
    yield r.choice([f"My name is {name}.", f"I am {name}.", f"Hello, my name is {name}.", f"Hi, I am {name}.", f"I'm {name}."]), (
        f"Hello, {name}! How can I help you?"
    )
    about_place = r.random() < 0.5
    if about_place:
        yield r.choice([f"I live in {place}.", f"I come from {place}.", f"I am from {place}."]), (
            f"{place} is a fine place, {name}."
        )
    for _ in range(r.choice([0, 0, 1])):
        yield from r.choice([capital, color, opposite, sum_of_two])(r)
    yield r.choice(["What is my name?", "Who am I?", "Do you know my name?", "What's my name?"]), f"Your name is {name}."
    if about_place and r.random() < 0.7:
        yield r.choice(["Where do I live?", "Where am I from?", "Where do I come from?"]), f"You told me that you are from {place}."


def story(r: random.Random) -> Iterator[Turn]:
    name, place, thing = r.choice(facts.NAMES), r.choice(facts.PLACES), r.choice(facts.WORDS)
    beast = r.choice(facts.ANIMALS)[0]
    if r.random() < 0.4:
        ask, hero = f"Tell me a story about {article(beast)}.", f"{article(beast)} named {name}"
    else:
        ask = r.choice(["Tell me a story.", "Tell me a story", "Tell a short story.", "Write a short story.", "Once upon a time"])
        hero = f"{r.choice(['a sailor', 'a girl', 'a boy', 'an old man', 'a young lady', 'a captain'])} named {name}"
    yield (
        ask,
        f"Once upon a time {hero} set out from {place}. On the road lay {article(thing)}, and nobody knew whose it was. "
        f"{name} carried it home and asked everyone in the village. At last {r.choice(['a child', 'the baker', 'the miller', 'the old teacher'])} "
        f"{r.choice(['laughed', 'smiled', 'wept with joy'])} and said that it was {r.choice(['his', 'hers'])}. "
        f"From that day on they were {r.choice(['the best of friends', 'never apart', 'good neighbours'])}.",
    )


def written(r: random.Random) -> Iterator[Turn]:
    questions, answer = r.choice(facts.WRITTEN)
    question = r.choice(questions.split("|"))
    if r.random() < 0.1:
        question = question.lower().rstrip("?.!")
    yield question, answer


def small_talk(r: random.Random) -> Iterator[Turn]:
    turns = [
        (facts.GREETINGS, facts.GREETING_ANSWERS),
        (facts.WELLBEING, facts.WELLBEING_ANSWERS),
        (facts.THANKS, facts.THANKS_ANSWERS),
        (facts.GOODBYE, facts.GOODBYE_ANSWERS),
    ]
    first, last = sorted(r.choices(range(4), k=2))
    for at in range(first, last + 1):
        asks, answers = turns[at]
        yield r.choice(asks.split("|")), r.choice(answers)


def mixing(r: random.Random) -> Iterator[Turn]:
    pair, result = r.choice(list(facts.MIXED.items()))
    yield (
        r.choice([f"What do you get if you mix {pair}?", f"Which color do {pair} make?", f"Mix {pair}.", f"What is {pair} mixed?"]),
        f"{capital_first(pair)} make {result}.",
    )


def statement(r: random.Random) -> Iterator[Turn]:
    if r.random() < 0.5:
        feeling, answer = r.choice(list(facts.FEELINGS.items()))
        yield r.choice([f"I am {feeling}.", f"I'm {feeling}.", f"I feel {feeling}.", f"I am so {feeling}."]), answer
    else:
        thing = r.choice(facts.LIKED).replace("&", " ")
        yield r.choice([f"I like {thing}.", f"I love {thing}.", f"I like {thing} very much."]), (
            f"I am glad that you like {thing}."
        )
        if r.random() < 0.5:
            yield r.choice(["What do I like?", "Do you know what I like?"]), f"You told me that you like {thing}."


def unknown(r: random.Random) -> Iterator[Turn]:
    topics = facts.TOPICS + facts.WORDS
    yield r.choice(facts.UNKNOWN).format(r.choice(topics), r.choice(topics)), r.choice(facts.UNKNOWN_ANSWERS)


# How often each kind comes.
KINDS: dict[Callable[[random.Random], Iterator[Turn]], int] = {
    written: 30, capital: 12, small_talk: 8, sum_of_two: 26, mixing: 2, statement: 4, color: 4, opposite: 7, animal: 6, category: 5, counting: 5,
    order: 4, lists: 5, spelling: 6, grammar: 5, continent: 4, language: 2, copying: 5, named: 6, story: 4, unknown: 10,
}  # fmt: skip


def quotation(r: random.Random, sentences: dict[str, list[str]]) -> Turn:
    author = r.choice(list(sentences))
    asks = [f"Write a line in the manner of {author}.", f"Write like {author}.", f"Write a sentence like {author}."]
    if author == "Jane Austen":
        asks += ["Write a line in the manner of an old book.", "Write a sentence from an old novel.", "Write something."]
    return r.choice(asks), r.choice(sentences[author])


def conversation(r: random.Random, sentences: dict[str, list[str]]) -> list[dict]:
    messages = []
    if r.random() < 0.08:
        messages.append({"role": "system", "content": r.choice(facts.SYSTEMS)})
    kinds, weights = list(KINDS), list(KINDS.values())
    parts = r.choices(kinds, weights, k=r.choice([1, 1, 1, 2, 2, 3]))
    if r.random() < 0.1:
        parts.insert(0, small_talk)
    turns = [list(part(r)) for part in parts]
    if sentences and r.random() < 0.05:
        turns.append([quotation(r, sentences)])
    for turn in turns:
        for question, answer in turn:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
    return messages


def conversations(count: int, seed: int, sentences: dict[str, list[str]] | None = None) -> Iterator[list[dict]]:
    """`sentences`: what authors wrote, by their names, for questions that ask for a line in their manner."""
    r = random.Random(seed)
    for _ in range(count):
        messages = conversation(r, sentences or {})
        # A few answers come with a thought before them, so that reasoning can be switched on.
        if r.random() < 0.15:
            messages[-1]["reasoning_content"] = r.choice(facts.THOUGHTS)
        yield messages
