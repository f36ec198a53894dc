"""What one would train instead of `utils.model`: TransformerLens' own model and loop, and plain torch without hooks."""

from contextlib import redirect_stdout
from io import StringIO

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.training import TrainConfig
from transformer_lens.tools.training import train as lens_train

from utils.model import AttentionOnly, AttentionOnlyConfig

WEIGHT_DECAY, WARMUP = 0.01, 50  # the defaults of `utils.loop.train`


def lens_model(config: AttentionOnlyConfig) -> TransformerBridge:
    """The nearest that TransformerLens builds: standard positions, biases (it always has them), no MLP, no normalisation."""
    names = "n_layers", "n_heads", "d_model", "d_head", "d_vocab", "n_ctx", "seed"
    shape = {name: getattr(config, name) for name in names}
    return TransformerBridge.boot_native({**shape, "attn_only": True, "normalization_type": None}, device="cpu")


class Documents(Dataset):
    """Documents as TransformerLens' loop wants them."""

    def __init__(self, tokens: Int[Tensor, "doc seq"]):
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, doc: int) -> dict[str, Tensor]:
        return {"tokens": self.tokens[doc]}


def train_lens(model: TransformerBridge, batches: Int[Tensor, "step doc seq"], lr: float) -> None:
    """TransformerLens' loop, once over the batches' documents. A weight decay makes it take AdamW."""
    options = {"weight_decay": WEIGHT_DECAY, "warmup_steps": WARMUP, "print_every": None, "device": "cpu"}
    config = TrainConfig(num_epochs=1, batch_size=batches.shape[1], lr=lr, seed=model.cfg.seed, **options)
    with redirect_stdout(StringIO()):  # it says on which device it is
        lens_train(model, config, Documents(batches.flatten(0, 1)))


class PlainLayer(nn.Module):
    """Attention as one writes it when nobody is going to look inside; `fused` does not even form the pattern."""

    def __init__(self, config: AttentionOnlyConfig, fused: bool):
        super().__init__()
        inner = config.n_heads * config.d_head
        self.fused, self.heads = fused, (config.n_heads, config.d_head)
        self.qk = nn.Linear(config.d_model, 2 * inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)

    def forward(self, x: Tensor, positions: Tensor, future: Tensor) -> Tensor:
        q, k = (self.split(half) for half in self.qk(x + positions).chunk(2, dim=-1))
        v = self.split(self.v(x))
        if self.fused:
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            z = (q / q.shape[-1] ** 0.5 @ k.mT + future).softmax(dim=-1) @ v
        return self.o(z.transpose(1, 2).flatten(2))

    def split(self, x: Float[Tensor, "batch seq inner"]) -> Float[Tensor, "batch head seq d_head"]:
        return x.unflatten(-1, self.heads).transpose(1, 2)


class Plain(nn.Module):
    """The mathematics of `AttentionOnly` with positions="qk", in plain torch: no hooks, no checks."""

    def __init__(self, config: AttentionOnlyConfig, fused: bool):
        super().__init__()
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.positions = nn.Parameter(torch.empty(config.n_ctx, config.d_model))
        self.layers = nn.ModuleList(PlainLayer(config, fused) for _ in range(config.n_layers))
        self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)
        self.register_buffer("future", torch.full((config.n_ctx, config.n_ctx), float("-inf")).triu(1))

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_vocab"]:
        n = tokens.shape[1]
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x, self.positions[:n], self.future[:n, :n])
        return self.unembed(x)


@torch.no_grad()
def plain_twin(model: AttentionOnly, fused: bool) -> Plain:
    """Plain torch with the same weights."""
    twin = Plain(model.cfg, fused)
    twin.embed.weight.copy_(model.W_E)
    twin.positions.copy_(model.W_pos)
    twin.unembed.weight.copy_(model.W_U.T)
    for layer, block in zip(twin.layers, model.blocks):
        W_Q, W_K, W_V = (getattr(block.attn, name).mT.flatten(0, 1) for name in ("W_Q", "W_K", "W_V"))
        layer.qk.weight.copy_(torch.cat([W_Q, W_K]))
        layer.v.weight.copy_(W_V)
        layer.o.weight.copy_(block.attn.W_O.flatten(0, 1).T)
    return twin


@torch.no_grad()
def check_twin(model: AttentionOnly, tokens: Int[Tensor, "batch seq"], fused: bool) -> None:
    """Same weights, same logits: else the comparison means nothing."""
    difference = (plain_twin(model, fused)(tokens) - model(tokens)).abs().max().item()
    if difference > 1e-5:
        raise ValueError(f"Plain torch (fused={fused}) is not the same model: its logits differ by {difference:.1e}.")


def train_plain(model: Plain, batches: Int[Tensor, "step doc seq"], lr: float) -> None:
    """The shortest sensible loop: fused AdamW, nothing recorded."""
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY, fused=True)
    for tokens in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
