"""Splits English, Korean and CJK text into sentences, without a model and without knowing the language.

- One compiled pattern finds the candidates: a run of stops with the closing quotes, brackets and citations after it,
  followed by a blank; full-width stops and line breaks, which always end a sentence; and a stop that touches the next
  word. The pattern itself, in C, decides what can be decided from the characters alone. Otherwise Python looks at the
  words before and after, at most `_REACH` characters away, so the time is linear for every text. One core reads 40 to
  65 MB/s of English or Korean encyclopedia text (benchmarks/sentences.py), where pysbd reads 0.2 and 0.6.
- Two rules may surprise. A stop inside a quotation ends a sentence too, because otherwise a whole speech would be one
  sentence; the exception is a Korean quotation that is continued by a particle ("...했다. ...했다"고 말했다). Before a
  lower-case letter, only a plain word with a full stop, or a run such as "!!", ends a sentence, except in a text
  without any capitals.
"""

import re

from bertworks.text.tokenizer import check_text

_REACH = 120
_LONGEST_WORD = 24

_STOPS = ".!?…"
_MOOD = "ㅋㅎㅠㅜ~^♥♡❤☺\ufe0f\u200d\U0001f300-\U0001faff"
_FULL_WIDTH = "。！？｡"
_OPENERS = "\"'“‘«‹([{「『（【〈《〔"
_CLOSERS = "\"'”’»›)]}」』）】〉》〕"
_CLOSING_QUOTES = "\"'”’»」』"
_CLOSING_TITLES = "》〉"
_BREAKS = r"\n\r\v\f\x85\u2028\u2029"
_NO_WORD = frozenset("/@°")
_LOWER = "a-zß-öø-ÿα-ωа-яё"
_CITATION = r"\[(?:(?:[^\W\d]{1,5} )?\d{1,3}|[a-z]|citation needed|출처 필요)\]"

_ENDINGS = "다요죠음함까임됨네어아해지야라자냐군걸듯래"
_SURE_ENDINGS = "다요죠음함까임됨네"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "Mr Mrs Ms Mx Messrs Dr Drs Prof Profs Gen Col Maj Capt Cpt Lt Sgt Cpl Pvt Cmdr Cdr Adm Brig Rev Fr Msgr Hon Gov "
    "Sen Sens Rep Reps Supt Insp Mme Mlle Amb Atty MR MRS DR LT COL CAPT GEN SGT PROF REV mr mrs ms dr prof vs v cf Cf "
    "viz Viz approx Approx ca incl excl esp e.g E.g i.e I.e eg ie resp aka a.k.a née Ste feat fl"
)
_MAYBE_LAST = _words(
    "Jr Sr jr sr Inc Ltd Co Corp Bros Cie Assn Assoc Dept dept Univ Inst Natl Intl Govt Bldg St st Ave Blvd Rd Hwy Sq "
    "Mt Ft ft al sp spp subsp var ed eds trans lit pop est abbr orig cont pl syn Esq PhD Calif Mass Conn Ariz Fla Va "
    "Penn Tenn Mich Minn Wis Okla Colo Ont Que"
)
_PARTS = _words(
    "Fig Figs fig figs Eq Eqs eq Sec Secs sec Ch ch Chap chap Vol Vols vol vols pp Pt pt Art Op op Tab Ex Bk bk Nr nr"
)
_CALENDAR = _words("Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun")
_BEFORE_DIGITS = _CALENDAR | _words("No Nos no nos")
_ABBREVIATIONS = _NEVER_LAST | _MAYBE_LAST | _PARTS | _BEFORE_DIGITS | {"etc"}
_AFTER_CLOCK = _words(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
    "September October November December EST EDT CST CDT MST MDT PST PDT GMT UTC BST CET KST JST ET PT Eastern Pacific"
)
_LETTERED = _words("vitamin plan grade type class group hepatitis appendix exhibit option part section side block")
_STARTERS = _words(
    "The This That These Those It Its He His She Her They Their We Our You Your I My There Here In On At By For From "
    "With Without As After Before During When While Where If Unless Although Though However But And Or So Then Thus "
    "Therefore Hence Yet Since Because Until Under Over To Of Some Many Most Both All Each Every Several Another Other "
    "Others One Two Three Four Five What Who Whose Why How Which Do Does Did Is Are Was Were Has Have Had Can Could "
    "Would Should Not No Yes Now Today Yesterday Later Also Instead Meanwhile Once Only Even Such Among Despite "
    "Following According Additionally Moreover Furthermore Perhaps Maybe Finally Eventually Subsequently Nevertheless "
    "Nobody Nothing Everyone Everything A An Never Still Soon Let Please Between Through Throughout Within Unlike "
    "Usually Often Sometimes Originally Currently Recently Initially Again Against Into Any Anyone Further"
)
_STARTERS_ANY_CASE = _STARTERS | {word.lower() for word in _STARTERS}


def _candidates(*, caseless: bool) -> re.Pattern[str]:
    """Compile the pattern; its first element must stay a single character class, which makes the search fast.

    Group 1, from after the first stop to the last closing mark, is set if Python must decide; group 2 if a lower-case
    letter follows. The look-behind for two stops avoids trying a long run again from each of its characters.
    """
    run, blanks, openers, closers = _STOPS + _MOOD, rf"[^\S{_BREAKS}]", re.escape(_OPENERS), re.escape(_CLOSERS)
    capital_follows = rf"(?![{openers}]*+[{_LOWER}](?![A-Z]))"
    plain_word_before = r"(?:(?<=[a-z]{4}\.\s)|(?<=[!?]{2}\s))"
    case = rf"(?:(?<=[가-힣][.!?]\s)|{capital_follows}|{plain_word_before}(?=([{_LOWER}])))"
    after_blanks = rf"(?=[^\s,;:)\]}}%{run}])" + ("" if caseless else case)
    return re.compile(
        rf"[{run}{_FULL_WIDTH}{_BREAKS}](?:"
        rf"(?<=[{_BREAKS}])\s*+"
        rf"|(?<=[{_FULL_WIDTH}])[{_FULL_WIDTH}…]*+(?:[{closers}]++(?![とのはがをに、])|(?![{closers}])){blanks}*+"
        rf"|(?<=[{run}])(?<![{run}]{{2}})([{run}]*+(?:[{closers}]|{_CITATION}|\ \[\d{{1,3}}\])*+)"
        rf"(?:{blanks}++{after_blanks}|(?=[가-힣]|[A-Z][a-z])))"
    )


_CASED = _candidates(caseless=False)
_CASELESS = _candidates(caseless=True)
_TAIL = re.compile(r"[^\W_][\w.&'’]*$")
_ENUMERATOR = re.compile(r"\(?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[IVX]{1,4}|[ivx]{1,4}|[가나다라마바사차카타파Ⅰ-ⅿ])\)?")
_NUMBER = re.compile(r"\d[\d.,]*")
_DATE_PART = re.compile(r"\d{1,2}\.(?!\d)")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")
_NUMERAL = re.compile(r"[(#]?(?:\d|[IVXLC]+\b|[A-Z]\b)")
_NEXT_WORD = re.compile(rf"[{re.escape(_OPENERS)}]*+([^\W_]{{1,16}}+)([-.]?)")
_QUOTATIVE = re.compile("이?라[고는며면던]|하[고며는자니]|고 |며 |이[다며었]|등|같은|[도의에을를은는와과로] |으로 ")
_QUOTE_GOES_ON = re.compile(rf"(?<=\S).(?:[가-힣]|\ (?:{_QUOTATIVE.pattern}))")
_SPEAKER = re.compile(
    r"(?:I|(?!He |She |They |We |Nobody |No one )[A-Z][\w.'’-]{0,20}(?: [A-Z][\w.'’-]{0,20}){0,2}) "
    r"(?:said|says|asked|asks|replied|cried|shouted|answered|exclaimed|whispered|muttered|called|yelled|screamed|"
    r"demanded|added|repeated|snapped|sighed|murmured|inquired|wondered|thought|roared|began|continued)\b"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, each without outer white space.

    >>> import bertworks as bw
    >>> bw.split_sentences('Dr. Kim paid $3.50. "Really?" she asked. 비가 온다. 우산을 쓴다.')
    ['Dr. Kim paid $3.50.', '"Really?" she asked.', '비가 온다.', '우산을 쓴다.']
    """
    check_text(text)
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of each sentence in characters; only white space is between them."""
    spans = []
    start = len(text) - len(text.lstrip())
    for candidate in (_CASELESS if text.islower() else _CASED).finditer(text):
        end = candidate.end(1)
        if end < 0:
            end = start + len(text[start : candidate.end()].rstrip())
        elif not _ends_sentence(text, start, candidate, end):
            continue
        if end > start:
            spans.append((start, end))
        start = candidate.end()
    end = len(text.rstrip())
    if end > start:
        spans.append((start, end))
    return spans


def _ends_sentence(text: str, start: int, candidate: re.Match[str], end: int) -> bool:
    """Decide about a candidate by the text around it; the first lines are a shortcut for a plain word's full stop."""
    stop, after = candidate.span()
    word = text[max(start, stop - _LONGEST_WORD) : stop].rpartition(" ")[2]
    is_full_stop = text[stop] == "." and text[stop + 1] not in _STOPS
    if is_full_stop and after > end and len(word) > 1:
        if end == stop + 1 and "가" <= word[-1] <= "힣":
            return not _inside_quotation(text, start, end)
        if word.isascii() and word.isalpha():
            if word not in _ABBREVIATIONS:
                return candidate.lastindex == 1 or word.islower()
            return candidate.lastindex == 1 and _abbreviation_ends(text, after, word)
    is_plain = end == stop + 1 < after and candidate.lastindex == 1 and not "가" <= text[after] <= "힣"
    if is_full_stop and is_plain and len(word) == 1 and word.isascii() and word.isalnum():
        return _full_stop_ends(text, start, stop, after, word)  # a shortcut for initials and numbers
    if candidate.lastindex == 2:
        return text[stop] != "." or (word.islower() and word not in _ABBREVIATIONS)
    # Marks inside their own brackets ("[...]", "(?)", "(pl.)") and stops inside titles ("《...!》") end no sentence.
    is_bracketed = (word[:1] == "(" and text[end - 1] == ")") or (word != "" and not word.strip(_OPENERS))
    if stop == start or text[end - 1] in _CLOSING_TITLES or is_bracketed:
        return False
    if after == end:
        # A stop that touches the next word: after a verb ending ("했다.그는") or before "The" and such.
        if text[end - 1] not in _STOPS:
            return False
        if text[end].isascii():
            return word[-3:].islower() and _starter_follows(text, end)
        if text.startswith(("라고", "라는", "라며"), end) or not (_is_hangul(word[-2:-1]) or word[-1:] == "네"):
            return False
        return word[-1] in (_SURE_ENDINGS if text[stop] == "." else _ENDINGS)
    if text[stop] not in _STOPS:
        # Laughter, tears and hearts end a sentence after a final ending ("봤어요ㅋㅋ") or a stop ("봤어요. ㅋㅋ").
        if any(mark in _STOPS for mark in text[stop : min(end, stop + _LONGEST_WORD)]):
            return True
        last = stop - 2 if text[stop - 1] == " " and text[stop] != "~" else stop - 1
        return last >= start and (text[last] in _ENDINGS or text[last] in _STOPS)
    is_quoted = text[end - 1] in _CLOSING_QUOTES
    # A Korean quotative or particle, or a source in brackets, belongs to the quotation it follows.
    if is_quoted and (not _starter_follows(text, after) if text[after] == "(" else _QUOTATIVE.match(text, after)):
        return False
    if (_is_hangul(word[-1:]) or _is_hangul(text[after])) and _inside_quotation(text, start, end):
        return False
    if is_full_stop:
        return _full_stop_ends(text, start, stop, after, word)
    if is_quoted and _SPEAKER.match(text, after):
        # «"Why?" Ann asked.» is one sentence, and «He asked, "Why?" Ann said nothing.» is two.
        opener = {"”": "“", "’": "‘", "»": "«"}.get(text[end - 1], text[end - 1])
        if text.rfind(" " + opener, max(start, stop - _REACH), stop) < 0:
            return False
    if is_quoted or text[stop] in "!?" or text[end - 1] in "!?":
        return True
    if _is_hangul(word[-1:]):  # "..." ends a sentence only where one can end
        return len(word) > 1 and word[-1] in _ENDINGS
    return word != "" or text[stop - 2] in _STOPS or _starter_follows(text, after)


def _is_hangul(character: str) -> bool:
    return "가" <= character <= "힣"


def _starter_follows(text: str, after: int) -> bool:
    word = _NEXT_WORD.match(text, after)
    return word is not None and not word[2] and word[1] in _STARTERS_ANY_CASE


def _inside_quotation(text: str, start: int, end: int) -> bool:
    """Tell whether the next quote closes an open one and a particle continues the sentence ("...다. ...다"고)."""
    for opener, closer in ('""', "“”", "‘’"):
        close = text.find(closer, end, end + _REACH)
        if close > 0 and _QUOTE_GOES_ON.match(text, close):
            passed = text[max(start, end - _REACH) : end]
            if passed.count('"') % 2 if opener == closer else passed.rfind(opener) > passed.rfind(closer):
                return True
    return False


def _full_stop_ends(text: str, start: int, stop: int, after: int, word: str) -> bool:
    """Decide about a full stop after anything but a plain word: a number, an initial, "U.S.", "(e.g.", "8km²."."""
    if stop - len(word) == start and _ENUMERATOR.fullmatch(word):
        return False
    if len(word) > 1 or not word.isalpha():
        tail = _TAIL.search(word)
        if tail is None or not _NO_WORD.isdisjoint(word):
            return True
        word = tail.group()
    if len(word) == 1 and (word.isupper() or word.islower()):
        return _letter_ends(text, stop, after, word)
    if _NUMBER.fullmatch(word):
        return _number_ends(text, stop, after, word)
    if word in _ABBREVIATIONS or _DOTTED.fullmatch(word):
        return _abbreviation_ends(text, after, word)
    return True


def _abbreviation_ends(text: str, after: int, word: str) -> bool:
    """Decide about the full stop of an abbreviation by the word that follows it."""
    if word in _NEVER_LAST:
        return False
    if word == "etc":
        return not text[after].islower()
    if word in _PARTS:
        return not _NUMERAL.match(text, after) and _starter_follows(text, after)
    following = _NEXT_WORD.match(text, after)
    if word in _BEFORE_DIGITS:
        return not (following and (following[1][0].isdigit() or following[1] in _CALENDAR))
    if word.lower() in ("a.m", "p.m"):
        return following is not None and following[1][0].isupper() and following[1] not in _AFTER_CLOCK
    return _starter_follows(text, after)


def _letter_ends(text: str, stop: int, after: int, letter: str) -> bool:
    """A letter is an initial ("J. Doe"), a mark ("p. 4", "b. Paris") or a name in itself ("vitamin C", "let n")."""
    if _starter_follows(text, after):
        return True
    previous = "".join(text[max(0, stop - _LONGEST_WORD) : stop].rsplit(None, 2)[-2:-1])
    if letter.islower():
        return previous[-1:].isdigit() or (letter not in "bcdfmprsv" and not text[after].isdigit())
    return previous.lower() in _LETTERED or (letter == "I" and previous.islower())


def _number_ends(text: str, stop: int, after: int, number: str) -> bool:
    """A number ends no sentence inside a date ("2020. 5. 3."), as a list mark, or, if short, before Hangul."""
    if not number.isdigit() or len(number) > 4:
        return True
    if _DATE_PART.match(text, after):
        return False
    if len(number) > 2:
        return True
    return not _is_hangul(text[after]) and text[stop - len(number) - 2 : stop - len(number)] != ": "
