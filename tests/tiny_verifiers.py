"""Tiny cross-encoders of each family: random weights, taught the obvious pairs in a second or two.

They know nothing else, which is enough: what is tested is the path, not the model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from offline_judge.backends.supported_label import SUPPORTED_PAIRS, UNSUPPORTED_PAIRS

NLI = ("entailment", "neutral", "contradiction")
CORPUS = [text for pair in (*SUPPORTED_PAIRS, *UNSUPPORTED_PAIRS) for text in pair for _ in range(3)] + [
    "The key is under the mat. Nothing of note happened on day 17. 서울의 수도는 어디입니까? 열쇠는 있다."
]
_SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def word_piece() -> dict:
    """BERT's scheme: [CLS] A [SEP] B [SEP], the second text of type 1."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=600, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True)
    )
    return {"tokenizer_object": tokenizer, **names}


def byte_pairs() -> dict:
    """RoBERTa's scheme: <s> A </s></s> B </s>, no types."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = dict(
        zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special, strict=True)
    )
    return {"tokenizer_object": tokenizer, "cls_token": "<s>", "sep_token": "</s>", **names}


def modern_byte_pairs() -> dict:
    """ModernBERT's scheme: byte pairs with [CLS] A [SEP] B [SEP], no types."""
    parts = byte_pairs()
    parts["tokenizer_object"].post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return parts


def sentence_piece() -> dict:
    """DeBERTa-v3's scheme: unigrams with a mark before every word, [CLS] A [SEP] B [SEP], types."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="[UNK]")
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = dict(
        zip(("pad_token", "cls_token", "sep_token", "unk_token", "mask_token"), special, strict=True)
    )
    return {"tokenizer_object": tokenizer, **names}


def _bert(**settings):
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**_SIZE, max_position_embeddings=128, **settings))


def _roberta(**settings):
    from transformers import RobertaConfig, RobertaForSequenceClassification

    # 130 positions, of which RoBERTa uses 128.
    return RobertaForSequenceClassification(
        RobertaConfig(**_SIZE, max_position_embeddings=130, type_vocab_size=1, **settings)
    )


def _xlm_roberta(**settings):
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    return XLMRobertaForSequenceClassification(
        XLMRobertaConfig(**_SIZE, max_position_embeddings=130, type_vocab_size=1, **settings)
    )


def _deberta(**settings):
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    return DebertaV2ForSequenceClassification(
        DebertaV2Config(
            **_SIZE,
            max_position_embeddings=128,
            relative_attention=True,
            position_buckets=32,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            type_vocab_size=0,
            pooler_hidden_size=32,
            **settings,
        )
    )


def _modern_bert(**settings):
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    return ModernBertForSequenceClassification(
        ModernBertConfig(
            **_SIZE,
            max_position_embeddings=256,
            cls_token_id=0,
            sep_token_id=2,
            bos_token_id=0,
            eos_token_id=2,
            **settings,
        )
    )


FAMILIES = {
    "bert": (_bert, word_piece),
    "roberta": (_roberta, byte_pairs),
    "xlm_roberta": (_xlm_roberta, byte_pairs),
    "deberta_v3": (_deberta, sentence_piece),
    "modernbert": (_modern_bert, modern_byte_pairs),
}


def make_verifier(
    folder: Path,
    family: str = "bert",
    labels: tuple[str, ...] = NLI,
    supported: int = 0,
    *,
    taught: bool = True,
) -> Path:
    """Save a tiny classifier whose label `supported` is taught to mean supported."""
    from transformers import PreTrainedTokenizerFast

    build, scheme = FAMILIES[family]
    names = ["input_ids", "attention_mask"]
    if family in ("bert", "deberta_v3"):
        names.insert(1, "token_type_ids")
    tokenizer = PreTrainedTokenizerFast(**scheme(), model_max_length=128, model_input_names=names)
    torch.manual_seed(0)
    model = build(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    if taught:
        teach(model, tokenizer, supported)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def teach(model, tokenizer, supported: int) -> None:
    """Fit the obvious pairs: `supported` on the supported ones, the other labels in turn elsewhere."""
    pairs = [*SUPPORTED_PAIRS, *UNSUPPORTED_PAIRS]
    inputs = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
    n_labels = model.config.num_labels
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    if n_labels == 1:
        wanted = torch.tensor([[1.0]] * len(SUPPORTED_PAIRS) + [[0.0]] * len(UNSUPPORTED_PAIRS))
        loss_of = torch.nn.BCEWithLogitsLoss()
    else:
        others = [label for label in range(n_labels) if label != supported]
        wanted = torch.tensor(
            [supported] * len(SUPPORTED_PAIRS)
            + [others[place % len(others)] for place in range(len(UNSUPPORTED_PAIRS))]
        )
        loss_of = torch.nn.CrossEntropyLoss()
    model.eval()  # no dropout: these pairs are to be known by heart
    for _ in range(300):
        loss = loss_of(model(**inputs).logits, wanted)
        if loss < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
