# SPDX-License-Identifier: Apache-2.0
"""A model of the Llama family out of a GGUF file, computed in float32 by numpy, with the weights as
the `gguf` package dequantises them. It is slow and plain, and shares nothing with the engine: what
the engine and llama.cpp compute is compared with it.

needs: numpy, gguf (PyPI)
"""
import numpy as np
from gguf import GGUFReader, dequantize


class Reference:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}

        def field(name, default=None):
            entry = reader.fields.get(name)
            return default if entry is None else entry.contents()

        arch = field("general.architecture")
        if arch != "llama":
            raise SystemExit(f"{path}: the reference computes llama models, this is {arch}")
        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.epsilon = field("llama.attention.layer_norm_rms_epsilon")
        self.theta = field("llama.rope.freq_base", 10000.0)
        self.dim = field("llama.embedding_length") // self.heads
        self.eos = field("tokenizer.ggml.eos_token_id")
        self.weights = {}

    def weight(self, name):
        """[outputs][inputs], float32."""
        if name not in self.weights:
            tensor = self.tensors[name]
            self.weights[name] = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return self.weights[name]

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + self.epsilon)
        return (x * scale * self.weight(name)).astype(np.float32)

    def rotate(self, x, positions):
        """x[token][head][dim]; pairs (2i, 2i + 1), the order of GGUF files of this family."""
        angles = positions[:, None] * self.theta ** (-np.arange(0, self.dim, 2) / self.dim)
        cos, sin = (f(angles).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def attention(self, layer, x, cache, position):
        prefix = f"blk.{layer}.attn_"
        count = len(x)
        q, k, v = (
            (x @ self.weight(f"{prefix}{name}.weight").T).reshape(count, -1, self.dim)
            for name in ("q", "k", "v"))
        positions = np.arange(position, position + count)
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        if layer in cache:
            k = np.concatenate([cache[layer][0], k])
            v = np.concatenate([cache[layer][1], v])
        cache[layer] = (k, v)
        unseen = np.arange(len(k))[None, :] > positions[:, None]
        out = np.empty_like(q)
        for head in range(self.heads):
            of = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, of].T / np.float32(np.sqrt(self.dim))
            scores[unseen] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, of]
        return out.reshape(count, -1) @ self.weight(f"{prefix}output.weight").T

    def ffn(self, layer, x):
        gate, up = (x @ self.weight(f"blk.{layer}.ffn_{name}.weight").T for name in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"blk.{layer}.ffn_down.weight").T

    def logits(self, tokens, cache=None, position=0):
        """[token][vocabulary] of tokens at `position` and on; a dict as cache continues."""
        cache = {} if cache is None else cache
        x = self.weight("token_embd.weight")[tokens]
        for layer in range(self.layers):
            x = x + self.attention(layer, self.norm(x, f"blk.{layer}.attn_norm.weight"), cache,
                                   position)
            x = x + self.ffn(layer, self.norm(x, f"blk.{layer}.ffn_norm.weight"))
        x = self.norm(x, "output_norm.weight")
        output = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return x @ self.weight(output).T
