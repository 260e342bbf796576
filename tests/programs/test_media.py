"""Token counts and identity of images, audio and files in demos, before and after saving a program."""

import base64
import random

import dspy
import litellm
import pytest
from fakes import OrderSensitiveEngine, using

from plr_dspy import PLFewShot, PLReorder, load_program

OPTIONS = {"num_threads": 1, "display_progress": False}
SIZE = 15_000
TOKENS_OF_AN_IMAGE = 250
"""Number of tokens that litellm counts for any image."""


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
    def example(i):
        fields = {"question": f"what is {i}", "answer": f"answer {i % 3}"}
        return dspy.Example(fields, medium=make(i)).with_inputs("medium", "question")

    return [example(i) for i in range(first, first + count)]


def right(example, prediction, trace=None):
    return example.answer == prediction.answer


def engine():
    return OrderSensitiveEngine({f"what is {i}": f"answer {i % 3}" for i in range(100)})


def text_of(parts):
    return " ".join(part.get("text", "") for part in parts)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


class TestTokens:
    def test_of_demos_do_not_include_the_encoded_data(self, kind):
        trainset = examples(KINDS[kind])
        options = {"max_metric_calls": 40, "max_demo_tokens": 2_000, **OPTIONS}
        chooser = PLFewShot(right, candidates="labeled", **options)
        with using(engine()):
            chooser.compile(dspy.Predict(signature(kind)), trainset=trainset)
        shown = [best for best in chooser.report.best_by_number if best.num_demos > 0]
        for best in shown:
            tokens_of_a_demo = best.tokens / best.num_demos
            assert TOKENS_OF_AN_IMAGE < tokens_of_a_demo < TOKENS_OF_AN_IMAGE + 120
        assert shown

    def test_of_prompts_are_estimated_before_any_call(self, kind):
        program = dspy.Predict(signature(kind))
        demos = examples(KINDS[kind], 2)
        trainset = examples(KINDS[kind], 20, 2)
        program.demos = demos
        plain = dspy.Predict("medium, question -> answer")
        plain.demos = [demo.copy(medium="") for demo in demos]
        without_media = [example.copy(medium="") for example in trainset]
        with using(engine()) as asked:
            optimizer = PLReorder(right, max_metric_calls=50, **OPTIONS)
            estimate = optimizer.estimate(program, trainset=trainset)
            least = optimizer.estimate(plain, trainset=without_media)
        assert asked.num_calls == 0
        more = (estimate.prompt_tokens - least.prompt_tokens) / estimate.program_calls
        assert 2 * TOKENS_OF_AN_IMAGE < more < 3 * TOKENS_OF_AN_IMAGE + 200

    def test_of_images_equal_the_count_of_litellm(self):
        part = {"type": "image_url", "image_url": {"url": KINDS["dspy.Image"](0).url}}
        messages = [[{"role": "user", "content": content}] for content in ([part], [])]
        options = {"use_default_image_token_count": True}
        counts = [litellm.token_counter("gpt-4o", messages=m, **options) for m in messages]
        assert counts[0] - counts[1] == TOKENS_OF_AN_IMAGE


class TestIdentity:
    def test_demos_of_a_loaded_program_are_recognized_among_the_examples(self, kind, tmp_path):
        program = dspy.Predict(signature(kind))
        trainset = examples(KINDS[kind])
        program.demos = [
            example.copy(question=f"about this: {example.question}") for example in trainset[:3]
        ]
        program.save(tmp_path / "program.json")
        loaded = load_program(dspy.Predict(signature(kind)), tmp_path / "program.json")
        with using(engine()):
            for student in (program, loaded):
                student.demos = [
                    {**demo, "question": demo["question"].split(": ")[1]} for demo in student.demos
                ]
                optimizer = PLReorder(right, max_metric_calls=40, **OPTIONS)
                optimizer.compile(student, trainset=trainset)
                settings = optimizer.report.settings
                assert settings["num_train"] + settings["num_selection"] == len(trainset) - 3

    def test_image_data_that_differ_in_case_are_different_images(self):
        """Case is ignored in text, but not in image data."""

        def make(i):
            letters = format(i, "08b").replace("0", "a").replace("1", "A")
            return dspy.Image(f"data:image/png;base64,{letters}")

        trainset = [example.copy(question="what is it") for example in examples(make)]
        program = dspy.Predict(signature("dspy.Image"))
        program.demos = trainset[:3]
        with using(engine()):
            optimizer = PLReorder(right, max_metric_calls=40, **OPTIONS)
            optimizer.compile(program, trainset=trainset)
        settings = optimizer.report.settings
        assert settings["num_train"] + settings["num_selection"] == len(trainset) - 3

    def test_demos_are_retrieved_by_their_text_fields(self, kind, tmp_path):
        """In a loaded program, images, audio and files in demos are strings."""
        trainset = examples(KINDS[kind])
        for i, example in enumerate(trainset):
            example.question = f"{['red', 'green', 'blue', 'brown'][i % 4]} thing"
        options = {"demos": "retrieved", "max_metric_calls": 0, "max_demos": 3, **OPTIONS}
        chooser = PLFewShot(right, candidates="labeled", **options)
        with using(engine()):
            program = chooser.compile(dspy.Predict(signature(kind)), trainset=trainset)
            program.save(tmp_path / "program.json")
            loaded = load_program(dspy.Predict(signature(kind)), tmp_path / "program.json")
        for finder in (program, loaded):
            with using(OrderSensitiveEngine({})):
                finder(medium=KINDS[kind](99), question="a blue thing")
                messages = dspy.settings.lm.history[-1]["messages"]
                _, *demos, _ = [message["content"] for message in messages]
            asked = list(map(text_of, demos[::2]))
            assert len(asked) == 3
            assert all("blue thing" in text for text in asked)
