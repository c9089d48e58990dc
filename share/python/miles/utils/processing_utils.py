"""The tokenizer of the run."""

import base64
import io

from miles import host


class Tokenizer:
    """The run's tokenizer and chat template, with the methods of a Hugging Face tokenizer.

    It runs inside miles: the same tokens as in training and in the engine."""

    def __init__(self):
        about = host.ask("tokenizer")
        self.vocab_size = about["vocab_size"]
        self.eos_token_id, self.eos_token = about["eos_token_id"], about["eos_token"]
        self.bos_token_id, self.bos_token = about["bos_token_id"], about["bos_token"]
        self.pad_token_id, self.pad_token = about["pad_token_id"], about["pad_token"]
        self.name_or_path = about["name_or_path"]

    def __len__(self):
        return self.vocab_size

    def encode(self, text, add_special_tokens=True, **kwargs):
        return host.ask("encode", text=text, special=add_special_tokens)

    def __call__(self, text, add_special_tokens=True, **kwargs):
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        ids = [self.encode(t, add_special_tokens) for t in text]
        return {"input_ids": ids, "attention_mask": [[1] * len(i) for i in ids]}

    def decode(self, token_ids, skip_special_tokens=False, **kwargs):
        if hasattr(token_ids, "tolist"):
            token_ids = token_ids.tolist()
        ids = [token_ids] if isinstance(token_ids, int) else [int(t) for t in token_ids]
        return host.ask("decode", ids=ids, skip=skip_special_tokens)

    def batch_decode(self, sequences, **kwargs):
        return [self.decode(s, **kwargs) for s in sequences]

    def convert_tokens_to_ids(self, tokens):
        if isinstance(tokens, str):
            ids = self.encode(tokens, add_special_tokens=False)
            return ids[0] if len(ids) == 1 else None
        return [self.convert_tokens_to_ids(t) for t in tokens]

    def apply_chat_template(
        self, conversation, tools=None, tokenize=True, add_generation_prompt=False, return_dict=False, **kwargs
    ):
        if kwargs.pop("return_tensors", None):
            raise NotImplementedError("the run's tokenizer returns lists; make a tensor of them")
        text = host.ask("render", messages=conversation, tools=tools, generate=add_generation_prompt, kwargs=kwargs)
        if not tokenize:
            return text
        ids = self.encode(text, add_special_tokens=False)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)} if return_dict else ids


_tokenizer = None


def load_tokenizer(name_or_path, chat_template_path=None, **kwargs):
    """The run's tokenizer; that of another model with the transformers package."""
    global _tokenizer
    if name_or_path not in (None, host.args.hf_checkpoint):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name_or_path, **kwargs)
    if _tokenizer is None:
        _tokenizer = Tokenizer()
    return _tokenizer


def load_processor(name_or_path, **kwargs):
    """Models with images are not supported: there is no processor."""
    return None


def encode_image_for_rollout_engine(image):
    """An image of the PIL package as a data URL."""
    data = io.BytesIO()
    (image if image.mode == "RGB" else image.convert("RGB")).save(data, format="PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode("ascii")
