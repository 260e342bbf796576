"""Pictures, sounds and files: their tokens, and what tells one from another, as objects and in saved programs."""

import base64
import random

import dspy
import litellm
import pytest
from fakes import OrderSensitiveEngine, using

from plr_dspy import PLFewShot, PLReorder, load_program

OPTIONS = {"num_threads": 1, "display_progress": False}
SIZE = 60_000
TOKENS_OF_A_PICTURE = 250
"""What litellm counts, whatever the picture."""


def data(number, size=SIZE):
    return base64.b64encode(random.Random(number).randbytes(size)).decode()


KINDS = {
    "dspy.Image": lambda i: dspy.Image(f"data:image/png;base64,{data(i)}"),
    "dspy.Audio": lambda i: dspy.Audio(data=data(i), audio_format="wav"),
    "dspy.File": lambda i: dspy.File(file_data=f"data:text/plain;base64,{data(i)}"),
    "list[dspy.Image]": lambda i: [dspy.Image(f"data:image/png;base64,{data(i)}")],
    "dict[str, dspy.Image]": lambda i: {"front": dspy.Image(f"data:image/png;base64,{data(i)}")},
}


def signature(kind):
    return f"medium: {kind}, question -> answer"


def examples(make, count=20, first=0):
    fields = [{"question": f"what is {i}", "answer": f"answer {i % 3}"} for i in range(first, first + count)]
    return [
        dspy.Example(fields[i], medium=make(first + i)).with_inputs("medium", "question") for i in range(len(fields))
    ]


def right(example, prediction, trace=None):
    return example.answer == prediction.answer


def engine():
    return OrderSensitiveEngine({f"what is {i}": f"answer {i % 3}" for i in range(100)})


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestTokens:
    def test_of_demos_are_not_those_of_their_data(self, kind):
        trainset = examples(KINDS[kind])
        chooser = PLFewShot(right, candidates="labeled", max_metric_calls=40, max_demo_tokens=2_000, **OPTIONS)
        with using(engine()):
            chooser.compile(dspy.Predict(signature(kind)), trainset=trainset)
        shown = [found for found in chooser.report.best_by_number if found.num_demos > 0]
        for found in shown:
            assert TOKENS_OF_A_PICTURE < found.tokens / found.num_demos < TOKENS_OF_A_PICTURE + 120
        assert shown

    def test_of_prompts_are_known_before_any_call(self, kind):
        program = dspy.Predict(signature(kind))
        demos = examples(KINDS[kind], 2)
        trainset = examples(KINDS[kind], 20, 2)
        program.demos = demos
        with using(engine()) as asked:
            found = PLReorder(right, max_metric_calls=50, **OPTIONS).estimate(program, trainset=trainset)
            plain = dspy.Predict("medium, question -> answer")
            plain.demos = [demo.copy(medium="") for demo in demos]
            told = [example.copy(medium="") for example in trainset]
            least = PLReorder(right, max_metric_calls=50, **OPTIONS).estimate(plain, trainset=told)
        assert asked.num_calls == 0
        more = (found.prompt_tokens - least.prompt_tokens) / found.program_calls
        assert 2 * TOKENS_OF_A_PICTURE < more < 3 * TOKENS_OF_A_PICTURE + 200

    def test_of_pictures_are_those_of_litellm(self):
        part = {"type": "image_url", "image_url": {"url": KINDS["dspy.Image"](0).url}}
        messages = [[{"role": "user", "content": content}] for content in ([part], [])]
        counts = [litellm.token_counter("gpt-4o", messages=m, use_default_image_token_count=True) for m in messages]
        assert counts[0] - counts[1] == TOKENS_OF_A_PICTURE


class TestIdentity:
    def test_demos_of_a_loaded_program_are_known_among_the_examples(self, kind, tmp_path):
        program = dspy.Predict(signature(kind))
        trainset = examples(KINDS[kind])
        program.demos = [example.copy(question=f"about this: {example.question}") for example in trainset[:3]]
        program.save(tmp_path / "program.json")
        loaded = load_program(dspy.Predict(signature(kind)), tmp_path / "program.json")
        with using(engine()):
            for each in (program, loaded):
                each.demos = [{**demo, "question": demo["question"].split(": ")[1]} for demo in each.demos]
                optimizer = PLReorder(right, max_metric_calls=40, **OPTIONS)
                optimizer.compile(each, trainset=trainset)
                settings = optimizer.report.settings
                assert settings["num_train"] + settings["num_selection"] == len(trainset) - 3

    def test_letters_in_another_case_are_another_picture(self):
        """Unlike in texts."""
        make = lambda i: dspy.Image(f"data:image/png;base64,{format(i, '08b').replace('0', 'a').replace('1', 'A')}")  # noqa: E731
        trainset = [example.copy(question="what is it") for example in examples(make)]
        program = dspy.Predict(signature("dspy.Image"))
        program.demos = trainset[:3]
        with using(engine()):
            optimizer = PLReorder(right, max_metric_calls=40, **OPTIONS)
            optimizer.compile(program, trainset=trainset)
        settings = optimizer.report.settings
        assert settings["num_train"] + settings["num_selection"] == len(trainset) - 3

    def test_demos_are_found_by_the_other_fields(self, kind, tmp_path):
        """Also those of a loaded program, which are texts."""
        trainset = examples(KINDS[kind])
        for i, example in enumerate(trainset):
            example.question = f"{['red', 'green', 'blue', 'brown'][i % 4]} thing"
        chooser = PLFewShot(right, demos="retrieved", candidates="labeled", max_metric_calls=0, max_demos=3, **OPTIONS)
        with using(engine()):
            program = chooser.compile(dspy.Predict(signature(kind)), trainset=trainset)
            program.save(tmp_path / "program.json")
            loaded = load_program(dspy.Predict(signature(kind)), tmp_path / "program.json")
        for each in (program, loaded):
            with using(OrderSensitiveEngine({})):
                each(medium=KINDS[kind](99), question="a blue thing")
                _, *demos, _ = [message["content"] for message in dspy.settings.lm.history[-1]["messages"]]
            asked = [" ".join(part.get("text", "") for part in parts) for parts in demos[::2]]
            assert len(asked) == 3
            assert all("blue thing" in text for text in asked)
