"""EAGLE-3 heads in PyTorch, as ``SafeAILab/EAGLE`` and ``speculators`` compute them, written anew.

Every row is computed again for every draft, so there is no KV cache that could go wrong.
"""

import torch
from torch import nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-5}


class TorchEagle3(nn.Module):
    """A random head for a target of a hidden size, reading ``ids``: boundaries, 0 the embedding.

    ``layer``: the fields of its layer's configuration, whose ``vocab_size`` is the target's.
    """

    def __init__(self, ids, target_hidden, layer, *, drafted=None, embed=False, **flags):
        super().__init__()
        self.ids, self.flags = ids, flags
        is_qwen = layer.get("model_type") == "qwen3"
        source, family = (qwen3, "Qwen3") if is_qwen else (llama, "Llama")
        fields = {k: v for k, v in layer.items() if k != "model_type"}
        config = (Qwen3Config if is_qwen else LlamaConfig)(**fields)
        config._attn_implementation = "eager"
        norm = getattr(source, f"{family}RMSNorm")
        hidden, epsilon = config.hidden_size, config.rms_norm_eps
        vocab, width = config.vocab_size, len(ids) * target_hidden
        self.rotary = getattr(source, f"{family}RotaryEmbedding")(config)
        self.midlayer = nn.Module()
        attention = self.midlayer.self_attn = getattr(source, f"{family}Attention")(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):  # the layer reads two vectors side by side
            rows = getattr(attention, name).weight.shape[0]
            setattr(attention, name, nn.Linear(2 * hidden, rows, bias=config.attention_bias))
        self.midlayer.mlp = getattr(source, f"{family}MLP")(config)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(self.midlayer, name, norm(hidden, epsilon))
        self.fc = nn.Linear(width, hidden, bias=False)
        self.norm = norm(hidden, epsilon)
        self.lm_head = nn.Linear(hidden, drafted or vocab, bias=False)
        if flags.get("norm_before_fc"):
            self.input_norm = norm(width, epsilon)
        if flags.get("fc_norm"):
            self.fc_norm = nn.ModuleList(norm(target_hidden, epsilon) for _ in ids)
        self.embed_tokens = nn.Embedding(vocab, hidden) if embed else None
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                nn.init.uniform_(parameter, 0.5, 1.5)
            else:
                attends = 4.0 if ".q_proj" in name or name.startswith("lm_head") else 1.0
                nn.init.normal_(parameter, std=attends * parameter.shape[1] ** -0.5)
        self.d2t = torch.zeros(drafted or vocab, dtype=torch.long)
        if drafted:
            tokens = torch.randperm(vocab)[:drafted].sort().values
            self.d2t = tokens - torch.arange(drafted)
            self.t2d = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)

    def tensors(self, layer="midlayer"):
        """What a file has, with the name that a format gives the layer."""
        found = {n.replace("midlayer", layer): p.detach() for n, p in self.named_parameters()}
        return found | ({"d2t": self.d2t, "t2d": self.t2d} if hasattr(self, "t2d") else {})

    def forward(self, embeddings, features):
        """The layer's output of all rows (rows, h), each an embedding beside a feature."""
        layer = self.midlayer
        normed = layer.hidden_norm(features)
        rows = torch.cat([layer.input_layernorm(embeddings), normed], -1)[None]
        positions = torch.arange(rows.shape[1])[None]
        mask = torch.full((rows.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        attended = layer.self_attn(
            hidden_states=rows,
            position_embeddings=self.rotary(rows, positions),
            attention_mask=mask,
        )[0][0]
        hidden = attended + (normed if self.flags.get("norm_before_residual") else features)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    @torch.no_grad()
    def logits(self, states, embedding, following):
        """(drafted,) logits after a text and drafts, from the target's states and its embedding.

        ``following``: the token after each row of the text, then the drafts.
        """
        if self.flags.get("fc_norm"):
            states = [norm(one) for norm, one in zip(self.fc_norm, states, strict=True)]
        features = torch.cat(states, -1)
        if self.flags.get("norm_before_fc"):
            features = self.input_norm(features)
        features = self.fc(features)
        embeddings = (embedding if self.embed_tokens is None else self.embed_tokens.weight)[
            following
        ]
        while True:
            last = self(embeddings[: len(features)], features)[-1:]
            normed = self.norm(last)
            if len(features) == len(following):
                return self.lm_head(normed)[0]
            features = torch.cat([features, normed if self.flags.get("norm_output") else last])
