"""A conversation as training reads it: token ids, and which of them the answer is."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from mrp_hf.training.collator import IGNORED

Messages = list[dict[str, str]]


def encode_conversation(
    messages: Messages, tokenizer: PreTrainedTokenizerBase, block_length: int, where: str
) -> dict[str, list[int]]:
    """`input_ids` of the conversation, and `labels`: the same on the last answer, -100 before it.

    The answer ends with end-of-sequence tokens up to the end of its last block, as decoding must produce them.

    Raises:
        ValueError: if the tokenizer cannot write it, naming `where` the record stands.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end-of-sequence token (`eos_token`), which every answer must end with")
    if tokenizer.chat_template is None:
        prompt = tokenizer("\n".join(message["content"] for message in messages[:-1]))["input_ids"]
        answer = tokenizer(messages[-1]["content"], add_special_tokens=False)["input_ids"]
    else:
        template: Any = tokenizer.apply_chat_template  # what it returns depends on its arguments
        prompt = template(messages[:-1], add_generation_prompt=True, return_dict=False)
        whole = template(messages, return_dict=False)
        if whole[: len(prompt)] != prompt:
            raise ValueError(f"{where}: the chat template writes the prompt differently when an answer follows it")
        answer = whole[len(prompt) :]
        if tokenizer.eos_token_id in answer:  # templates may write a line break behind it
            answer = answer[: len(answer) - 1 - answer[::-1].index(tokenizer.eos_token_id)]
    fill = block_length - (len(prompt) + len(answer)) % block_length
    answer = answer + [tokenizer.eos_token_id] * fill
    return {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
