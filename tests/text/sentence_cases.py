"""Paragraphs with marked sentence ends, invented for this test, and the score of a splitter on them.

"|" marks an end: " | " stands for a blank, a bare "|" for ends that touch the next sentence. Lines are joined by a
blank; an empty line ends a paragraph. The `HELD_OUT` halves were written before the first line of the splitter and
not looked at while it was tuned on the `TUNED` halves and on encyclopedia text. At first contact they scored 0.9935 in
English (one end of 78 missed, mended since) and 1.0 in Korean.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Spans = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """A paragraph and its sentences in order."""

    text: str
    sentences: tuple[str, ...]

    @property
    def inner_ends(self) -> set[int]:
        """Return where its sentences end, in characters, the end of the text left out."""
        ends, position = set(), 0
        for sentence in self.sentences:
            position = self.text.index(sentence, position) + len(sentence)
            ends.add(position)
        return ends - {len(self.text)}


def parse_case(marked: str) -> Case:
    """Read one marked paragraph."""
    marked = " ".join(marked.split("\n"))
    sentences = tuple(sentence.strip() for sentence in marked.split("|"))
    return Case(marked.replace(" | ", " ").replace("|", ""), sentences)


def parse_cases(marked: str) -> list[Case]:
    """Read marked paragraphs with empty lines between them."""
    return [parse_case(paragraph) for paragraph in marked.strip().split("\n\n")]


def boundary_f1(cases: Iterable[Case], spans_of: Callable[[str], Spans]) -> float:
    """Return the F1 of the inner sentence ends a splitter finds; 1.0 when they are exactly those marked."""
    right = found = marked = 0
    for case in cases:
        ends = {end for _, end in spans_of(case.text)} - {len(case.text)}
        right += len(ends & case.inner_ends)
        found += len(ends)
        marked += len(case.inner_ends)
    return 2 * right / (found + marked)


HELD_OUT_ENGLISH = parse_cases("""
The city council voted 7-2 on Tuesday to extend the tram line to Harwick St. before the end of 2027. | Mayor Lena
Ortiz called the decision "long overdue." | Opponents say the $48.5 million plan was rushed. | "Nobody asked the
shopkeepers," said Tom Bell, who has run a bakery there since 1998. | Work is to begin on Mar. 3 at 6 a.m. and last
about 14 months.

Ilvana (pop. 3,412) is a market town in the upper Soren valley, approx. 40 km north of the coast. | It was founded c.
1187 by monks from St. Aldric's Abbey.[3] | The old bridge, built by J. W. Harrow & Sons Ltd. in 1874, is a listed
monument.[4][5] | Its church has two towers: the north one is 51.2 m high, the south one 48 m. | The railway closed in
1962. | Since then the station has served as a library (opened 1971).

Version 2.4.1 or later is needed; v2.3 has a known bug in the parsing of config.yaml files. | Run setup.py first. |
See https://docs.example.org/install.html#step-2 for details. | If that fails, write to help@example.org. | Is your
file larger than 1.5 GB? | Then use the chunked mode, e.g. with pieces of 64 MB. | Node.js is not required.

"Go home!" he shouted. | "Why should I?" she asked, not moving an inch. | He said "Stop." | Then he walked away. | "I
don't know... maybe tomorrow," said Ann. | "What?!" | Nobody answered. | 'Leave it,' the old man muttered. | 'It's
only the wind.'

Dr. Amira Haddad joined the institute in 2009 after finishing her Ph.D. at a small college in Vermont. | Her work with
Prof. R. Lindqvist on cell walls was cited over 900 times. | She has also advised the U.S. government. | Today she
leads a team of 12, incl. three engineers. | They publish in journals such as Cell Notes, Plant Matters, etc. | Her
brother, Karim Haddad Jr., runs a bookshop.

I bought this kettle in May and it broke in June. | Terrible! | The lid never closed properly, the handle gets hot...
and the whistle sounds like a dying goose. | Would I buy it again? | No. | Customer service offered me 10% off my next
order. | Thanks, but no thanks!!! | Two stars because it looks nice.

The firm reported sales of $3.2 bn, up 4.7% from a year earlier. | Shares of Norvik Inc. rose to 31.40 in early
trading. | Analysts at Dunmore & Co. had expected less. | The company is based in Boston and employs 8,000 people in
the U.S. and Canada. | Its rival, Telgar Corp., fell by 2 percent. | Both will report again on Oct. 28.

As shown in Fig. 3, the error falls with depth (cf. Sec. 2.1). | Smith et al. (2014) found the opposite. | We use p <
0.05 throughout. | Let x be the input, i.e. the vector of all pixels. | The loss is convex, so gradient descent
converges; see Eq. 7. | What happens if x = 0? | In that case no update is made.

The letter was signed by George F. Tillman. | He had met Mrs. Crane only once. | It arrived at No. 12 Bell Lane at
4:30 p.m. on a Friday. | Capt. Ross and Lt. Weber opened it together. | Inside was a single line: "Do not wait for
me." | The two men looked at each other. | Who had sent it?

1. Wash the rice until the water runs clear. | 2. Add 1.5 cups of water. | 3. Bring to the boil, then turn the heat
down and cover. | Wait 12 min. before lifting the lid. | Serve with soy sauce, sesame oil, etc.

Many birds (e.g. swallows and cranes) leave in autumn. | Some never return! | (Nobody knows exactly why.) | Others
come back to the same roof year after year. | The record is held by an arctic tern: it flew 96,000 km in a year… |
That is more than twice around the Earth.

She lived in Washington, D.C. from 1990 to 1994. | Then she moved to St. Louis. | In the U.K. she would have been
called a barrister. | J. R. Whitcombe, her mentor, retired at 70. | He had been an adviser to Gov. Mills and Sen.
Dale. | What a career!

Is it true that the moon smells of gunpowder? | Astronauts say so. | On Earth, however, the same dust has no smell at
all. | One theory is that it reacts with oxygen (or water) and loses it. | Another is simpler: there was nothing to
smell. | "We only imagined it," one of them joked. | The samples weigh 382 kg in total.

Vitamin B12 is made by bacteria. | E. coli does not need it. | Adults should take in about 2.4 mcg. per day. | The
vitamin was isolated in 1948. | Plan B? | There is none. | Turn to p. 41 for a table of foods.
""")

TUNED_ENGLISH = parse_cases("""
J. R. R. Aldane wrote his first novel in 1931. | It sold 214 copies. | His publisher, Mr. Penn, advised him to try
poetry instead. | "I would rather starve!" Aldane replied. | He nearly did. | Fifteen years later, A. B. Crole of the
Daily Post found the book in a second-hand shop. | The rest is well known.

Heavy rain closed two lanes of Interstate 80 near Reno, Nev. on Sunday. | No one was hurt. | The highway reopened at 9
p.m. Monday, officials said. | Crews had worked since 4 a.m. | They removed about 300 tons of mud, rocks, etc. | More
rain is expected this week. | "It isn't over," warned Sgt. Dana Cole.

The U.S. Navy ordered two ships. | They were built in the U.K. between 1911 and 1913. | Neither saw action in the U.S.
| However, one was sold to Chile in 1920. | Adm. Luis Prat renamed her. | She was broken up ca. 1952. | Her bell
(weight: 212.5 kg) is now in a museum.

Open the file main.py in your editor. | Change the line that reads x = 1.0 to x = 0.5. | Save it. | Now run python
main.py --seed 42. | Did it print "done."? | If not, check the log (see ./logs/run.txt). | The tool needs Python 3.11
or newer. | Questions go to dev-team@mail.example.com. | We answer within 24 hrs. on weekdays.

Mercury is the smallest planet. | Its radius is 2,439.7 km. | A day there lasts 58.6 Earth days (sic!). | Does it have
an atmosphere? | Hardly. | Its exosphere has a pressure of less than 0.5 nPa. | See also Vol. II, ch. 4, pp. 120-131.
| The planet has no moons.[12] | It was known to the Babylonians.[13][14] | They called it Nabu.

I love this place!! | The staff are so friendly... I'll be back for sure. | Parking is a nightmare, though. | Prices?
| Fair. | We paid $12.50 for two coffees and a slice of cake. | My only complaint is the music :( but you can't have
everything.

"Are you coming?" asked Mira. | "In a minute!" | She waited. | "You always say that," she muttered, "and then it takes
an hour." | From upstairs came a crash. | "What was that?!" | "Nothing!" Paul shouted. | “I see,” said Mira. | “Then I
will go alone.” | She slammed the door.

The experiment was repeated three times. | In the first run (n = 24) the yield was 61.3%. | In the second it fell to
58%. | Dr. Osei et al. reported similar values, cf. Table 2. | Why the third run failed is unclear. | We suspect that
vitamin C degraded the samples.

Founded in 1902 as Harland Tool Co., the firm changed its name in 1960. | It is now called Harland Inc. | The company
makes pumps, valves and (since 2004) heat exchangers. | Its headquarters are at 1200 Lake Ave. in Duluth. | Revenue
was €1.3 billion in 2018. | Mr. and Mrs. Harland still own 12% of it.

Who was the first woman to climb the peak? | Most books say it was Edith Marlowe. | She reached the top on Aug. 4,
1898, at 11:20 a.m. | Others name Clara Voss. | Miss Voss never claimed it. | "I stopped at the saddle," she wrote to
her sister. | "It was too cold to go on." | Marlowe's own diary is lost.

Take route no. 7 to the harbor. | From there it is a ten-minute walk. | Is the museum open on Mondays? | No. | On
other days it opens at 10. | Children under 12 pay nothing. | The guide costs 3.50. | Dogs are not allowed.

The committee met for the third time. | 14 members were present. | The chair, Prof. Dr. K. Maier, opened the meeting.
| Item 1: budget. | Item 2: staff. | A vote was taken. | (Two members abstained.) | "That settles it," said Maier. |
The next meeting is on Fri. 12 May.

2.1. The setup was simple. | We trained each model for 10 epochs. | The learning rate was 1e-4. | All runs used v1.8.0
of the library. | The code is at github.com/example/repo. | Results are in Tab. 4.

He opened the box and found... nothing. | "Empty," he said. | "Of course." | He had expected gold, jewels, a map,
anything! | Instead there was dust. | At the bottom someone had scratched two letters: E.K. | Who was E.K.? | He never
found out.

The word "okay" is first attested in 1839. | Its origin is disputed, i.e. nobody really knows. | Some derive it from
"oll korrect". | Others point to Choctaw. | Linguists such as W. Read and H. Byron have argued for both. | The debate
goes on...

Dear Ms. Okafor, thank you for your letter of Feb. 11. | We are sorry that your order (No. 5531) has not arrived. |
Our partner, Swift Parcel Ltd., lost it. | A new one was sent today. | It should reach you by 5 p.m. tomorrow. |
Please accept a voucher of $20. | Yours, J. Pike, Head of Sales.
""")

HELD_OUT_KOREAN = parse_cases("""
서울시는 내년 3월부터 한강 자전거 도로를 12.5km 연장한다고 10일 밝혔다. | 총사업비는 약 48억 원이다. | 시 관계자는
"시민들의 의견을 충분히 듣겠다"고 말했다. | 그러나 일부 주민은 공사 소음을 걱정하고 있다. | 공사는 2026. 4. 1.부터
시작될 예정이다. | 완공까지는 1년 6개월이 걸릴 것으로 보인다.

온담읍은 강원도 남부에 있는 읍이다. | 인구는 8,412명(2019년)이다. | 조선 시대에는 역참이 있었으며, 1914년에 지금의
이름을 얻었다. | 읍내에는 17세기에 지은 다리가 남아 있다.[2] | 이 다리는 길이가 24.3m이고 폭은 3m이다. | 철도역은
1987년에 문을 닫았다. | 지금은 도서관으로 쓰인다.

"어디 가세요?" 하고 아이가 물었다. | 할머니는 대답하지 않았다. | "비가 올 것 같구나." | 한참 뒤에 할머니가 말했다. |
아이는 하늘을 올려다보았다. | 정말 구름이 몰려오고 있었다! | "우산을 가져올게요."라고 아이가 소리쳤다. | 할머니는
빙그레 웃었다.

배송이 진짜 빨라요! | 포장도 꼼꼼하게 되어 있었어요. | 근데 색깔이 사진이랑 조금 다르네요ㅠㅠ | 그래도 가격 생각하면
만족합니다. | 재구매 의사 있어요~ | 사이즈는 정사이즈보다 조금 작은 듯합니다. | 참고하세요.

영화는 기대보다 훨씬 재미있었다. | 특히 마지막 20분은 숨을 쉴 수가 없었다. | 다만 음악이 너무 컸다... | 왜 그렇게
했을까? | 감독의 의도라면 할 말이 없다. | 내 점수는 10점 만점에 8.5점이다. | 아이들과 함께 보기에는 조금 무섭다.

설치 방법은 다음과 같습니다. | 1. 먼저 공식 누리집에서 파일을 내려받습니다. | 2. 압축을 풀고 setup.exe를 실행합니다. |
버전은 3.11 이상이어야 합니다. | 자세한 내용은 https://example.kr/guide.html 을 참고하십시오. | 문의는 help@example.kr
로 보내 주시기 바랍니다. | 오류가 계속되면 어떻게 해야 하나요? | 컴퓨터를 다시 시작해 보세요.

김 교수는 1978년 대전에서 태어났다. | 미국 시카고 대학에서 박사 학위(Ph.D.)를 받았다. | 귀국한 뒤에는 나노 소재를
연구했다. | 그의 논문은 900회 이상 인용되었다. | 2015년에는 ‘올해의 과학자’로 뽑혔다. | 그는 “실패를 두려워하지
마라.”라는 말을 자주 한다. | 취미는 등산이다.

물가가 1년 만에 3.4% 올랐다. | 정부는 “일시적인 현상”이라고 설명했다. | 전문가들의 생각은 다르다. | 이 연구원은
“하반기에는 더 오를 수 있다”며 “대책이 필요하다”고 지적했다. | 과연 누구 말이 맞을까? | 결과는 연말에 나온다.

오늘 점심 뭐 먹었어? | 나는 김치찌개 먹었어. | 진짜 맛있더라ㅋㅋㅋ | 다음에 같이 가자! | 거기 가격도 착해. |
8,000원밖에 안 해. | 대박이지? | 몇 시에 볼까?

물은 섭씨 100도에서 끓는다. | 그러나 높은 산에서는 더 낮은 온도에서 끓는다. | 기압이 낮기 때문이다. | 예를 들어 해발
3,000m에서는 약 90도에서 끓는다. | 그래서 밥이 설익기 쉽다. | 압력솥을 쓰면 이런 문제를 줄일 수 있다. | 그림 2. 고도와
끓는점의 관계를 보라.

한국어의 문장은 보통 서술어로 끝난다.|그래서 끝까지 들어야 뜻을 안다고들 한다.|정말 그럴까? | 꼭 그렇지는 않다. |
대화에서는 말을 다 맺지 않는 일도 많다… | 듣는 사람은 나머지를 짐작한다.
""")

TUNED_KOREAN = parse_cases("""
정부가 내년부터 모든 초등학교에 돌봄 교실을 운영하기로 했다. | 대상은 약 6천 곳이다. | 교육부 관계자는 “맞벌이 부부의
부담을 덜어 주기 위한 조치”라며 “인력도 늘리겠다”고 말했다. | 하지만 교사 단체는 반발하고 있다. | 이들은 “준비가 되지
않았다. 시행을 미뤄야 한다”고 주장했다. | 최종안은 2025. 11. 20. 발표된다.

백운천은 길이 32.4km의 하천이다. | 소백산에서 시작하여 남한강으로 흘러든다. | 유역 면적은 210㎢이다. | 조선 후기의
지도(1861년)에도 나온다. | 1.5배로 넓어진 하구에는 갈대밭이 있다. | 겨울에는 청둥오리, 고니 등이 찾아온다. | 주요
지류로는 A. 단산천, B. 옥천 등이 있다.

“밥 먹었니?” | 어머니가 물었다. | “아직요.”라고 나는 대답했다. | 사실은 배가 고프지 않았다. | “조금만 기다려라. 금방
차려 줄게.” 하고 어머니는 부엌으로 가셨다. | 나는 창밖을 보았다. | 눈이 내리고 있었다. | 그때 전화가 울렸다. |
누구일까?

와 진짜 대박이에요!! | 두 번 봤는데 또 보고 싶어요ㅋㅋㅋ | 배우들 연기가 미쳤음. | 다만 상영 시간이 좀 길어요ㅠㅠ |
팝콘 꼭 챙기세요~ | 별 다섯 개 드립니다^^ | 안 보면 후회함.

음식은 맛있었는데 직원이 불친절했어요. | 주문한 지 40분 만에 나왔네요... | 가격은 1인당 2만 5천 원입니다. | 비싼
편이죠? | 다시 갈지는 모르겠어요. | 주차는 편해요!

파이썬 3.12를 설치하세요.|그다음 터미널을 엽니다.|명령을 입력했나요? | 그러면 결과가 나옵니다. | 값이 0.5보다 크면
성공이다. | 로그는 run.log 파일에 저장된다. | 자세한 것은 www.example.co.kr 를 보라. | 질문이 있으면 메일을 보내
주세요.

존 F. 해밀턴은 미국의 화가이다. | 그는 1892년 5월 3일에 보스턴에서 태어났다. | 어릴 때부터 그림을 좋아하였다. |
대표작으로는 《바다의 끝》, 〈겨울 아침〉 등이 있다. | 1920년대에 파리로 건너갔다. | 그의 그림은 “너무 어둡다.”는 평을
들었다. | 그래도 그는 그만두지 않았다.

왜 하늘은 파랄까? | 햇빛이 공기 중에서 흩어지기 때문이다. | 파장이 짧은 빛일수록 더 많이 흩어진다(레일리 산란). |
저녁에는 빛이 지나는 길이 길어진다. | 그래서 하늘이 붉게 보인다. | 화성의 하늘은 어떤가? | 반대로 낮에는 붉고 저녁에는
푸르다! | 참 신기한 일이다.

안녕하세요, 김민지입니다. | 지난주에 말씀드린 자료를 보내 드립니다. | 확인 부탁드려요. | 혹시 빠진 것이 있으면 알려
주시겠어요? | 회의는 6월 2일(월) 오후 3시입니다. | 장소는 본관 204호예요. | 감사합니다.

그는 문을 열었다. | 아무도 없었다... | “거기 누구 있어요?” | 대답이 없었다. | 그는 ‘이상하다. 분명히 소리를
들었는데.’라고 생각했다. | 갑자기 불이 꺼졌다! | 심장이 쿵쾅거렸다. | 그게… 사실이었다니. | 그는 천천히 뒤로 물러섰다.

가. 신청 자격은 만 19세 이상입니다. | 나. 신청 기간은 3. 2.부터 3. 15.까지입니다. | 서류는 우편으로도 받습니다. | 접수
번호는 따로 알려 드립니다. | 환불은 되지 않음. | 문의: 02-123-4567.
""")

ENGLISH = HELD_OUT_ENGLISH + TUNED_ENGLISH
KOREAN = HELD_OUT_KOREAN + TUNED_KOREAN
