"""The demo task's tokenizer: one token a word, a digit or a punctuation mark, with a chat template."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mrp_hf.demo.task import every_text

PAD, END, MASK, UNKNOWN, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|mask|>", "<|unk|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (PAD, END, MASK, UNKNOWN, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<|assistant|>{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# A word keeps its leading space as "▁", so a number's first digit and its later digits are different tokens and
# decoding restores the text exactly.
_PIECE = Regex(r"▁?\d|▁?[a-z]+|▁?#+|▁?[^a-z\d▁#]")


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=False),
            pre_tokenizers.Split(_PIECE, behavior="isolated"),
        ]
    )


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, from the task's own wordings: no file is read."""
    pre_tokenizer = _pre_tokenizer()
    pieces = {piece: None for text in every_text() for piece, _ in pre_tokenizer.pre_tokenize_str(text)}
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *pieces))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        mask_token=MASK,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
