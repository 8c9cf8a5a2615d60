"""A little of what people send to models, for what is measured about a model before it serves."""

SAMPLE_TEXT = """The ferry left the harbour at six, half an hour late, because a truck full of oranges
had broken down on the
ramp. Nobody minded much. The passengers sat on their bags, drank coffee from paper cups and watched the
lights of the town go out one by one. "Is it always like this?" asked the girl with the violin case. "Only on
Tuesdays," said the old man, and went back to his newspaper.

User: Can you explain why bread rises?
Assistant: Yes. Yeast eats the sugar in the dough and gives off carbon dioxide. Gluten, a protein in flour, forms a net
that holds the gas, so the dough grows. Three things matter most:
1. Warmth: between 24 and 30 degrees yeast works fastest.
2. Time: one to two hours for the first rise.
3. Kneading, about ten minutes, which makes the net strong.

def mean(numbers):
    total = 0.0
    for number in numbers:
        total += number
    return total / len(numbers) if numbers else None

In 1969 the fund held $4.2 million; by 1983 it had grown to $61.7 million, an average of 21% per year. Critics
point out that most of the gain came from a single investment, and that the trustees, who met twice a year,
had opposed it. What can be learned from that? Perhaps only that rules which protect us from mistakes protect
us from luck as well.

{"name": "Ada", "roles": ["admin", "editor"], "active": true, "score": 97.5, "address": {"city": "Turin", "zip": 10121}}

Die Nacht war kalt, und der Schnee lag hoch vor der Tür. Los niños jugaban en la plaza mientras sus abuelos
hablaban del tiempo. Les trains partent toutes les vingt minutes. 今天天气很好，我们去公园散步吧。

Dear Ms. Okafor, thank you for your letter of 3 May. We have looked into the matter and found that the parcel
was sent to the wrong address. A new one is on its way to you; it should arrive on Friday. Please accept our
apologies.

Let n be even. Then n = 2k for some whole number k, so n^2 = 4k^2 is a multiple of four. Conversely, if n is
odd, n^2 leaves the remainder one. Hence a square never leaves the remainder two or three when it is divided
by four.
"""
