"""Times of the same models in PyTorch, from transformers: random weights, the same sizes. Lines `torch CASE<tab>ms`.

usage: torch_times.py [CASE..]    (all without arguments; a model that this version of transformers lacks is left out)
"""

import statistics
import sys
import time

import torch
import transformers as t

torch.set_num_threads(2)
torch.manual_seed(0)


def ids(batch, tokens, vocabulary):
    return torch.randint(0, vocabulary, (batch, tokens))


def encoder(model, config, batch, tokens=128):
    model = model(config).eval()
    x = ids(batch, tokens, config.vocab_size - 1)
    return lambda: model(input_ids=x)


def image(model, config, size=224):
    model = model(config).eval()
    x = torch.randn(1, 3, size, size)
    return lambda: model(pixel_values=x)


def bert(batch):
    config = t.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return encoder(lambda c: t.BertModel(c, add_pooling_layer=False), config, batch)


def distilbert(batch):
    return encoder(t.DistilBertModel, t.DistilBertConfig(n_layers=6), batch)


def modernbert():
    config = t.ModernBertConfig(num_hidden_layers=6, hidden_size=768, num_attention_heads=12, intermediate_size=1152)
    return encoder(t.ModernBertModel, config, 1)


def t5(flan):
    sizes = dict(d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu") if flan else dict(num_layers=6)
    return encoder(t.T5EncoderModel, t.T5Config(d_model=512, vocab_size=32128, **sizes), 1)


COMMON = dict(vocab_size=32000, num_hidden_layers=4, max_position_embeddings=2048, hidden_size=1024)
LANGUAGE = {
    "llama": lambda: t.LlamaConfig(**COMMON, num_attention_heads=16, num_key_value_heads=4, intermediate_size=2816),
    "qwen2": lambda: t.Qwen2Config(**(COMMON | dict(hidden_size=896)), num_attention_heads=14, num_key_value_heads=2,
                                   intermediate_size=4864),
    "qwen3": lambda: t.Qwen3Config(**COMMON, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                                   intermediate_size=3072),
    "mistral": lambda: t.MistralConfig(**COMMON, num_attention_heads=16, num_key_value_heads=4,
                                       intermediate_size=3584, sliding_window=None),
    "phi": lambda: t.PhiConfig(**COMMON, num_attention_heads=16, intermediate_size=4096, partial_rotary_factor=0.5),
    "phi3": lambda: t.Phi3Config(**COMMON, num_attention_heads=16, num_key_value_heads=16, intermediate_size=2816,
                                 pad_token_id=0),
    "gemma2": lambda: t.Gemma2Config(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=256,
                                     intermediate_size=4096),
    "gemma3": lambda: t.Gemma3TextConfig(**(COMMON | dict(hidden_size=640, num_hidden_layers=6)),
                                         num_attention_heads=4, num_key_value_heads=1, head_dim=256,
                                         intermediate_size=2048),
    "falcon": lambda: t.FalconConfig(vocab_size=32000, hidden_size=1024, num_hidden_layers=4, num_attention_heads=16),
    "stablelm": lambda: t.StableLmConfig(**COMMON, num_attention_heads=16, num_key_value_heads=16,
                                         intermediate_size=2816),
}


def language(name, decode, dtype=torch.float32):
    model = t.AutoModelForCausalLM.from_config(LANGUAGE[name](), dtype=dtype).eval()
    prompt = ids(1, 128, 32000)
    if not decode:
        return lambda: model(input_ids=prompt, use_cache=True, logits_to_keep=1)
    cache = model(input_ids=prompt, use_cache=True).past_key_values
    token = ids(1, 1, 32000)

    def step():
        model(input_ids=token, past_key_values=cache, use_cache=True)
        cache.crop(128)

    return step


def whisper(decoder):
    config = t.WhisperConfig(d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
                             decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048)
    model = t.WhisperModel(config).eval()
    if not decoder:
        mel = torch.randn(1, 80, 3000)
        return lambda: model.encoder(mel)
    return None


def vit(dtype=torch.float32):
    config = t.ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    model = t.ViTForImageClassification(config).eval().to(dtype)
    x = torch.randn(1, 3, 224, 224, dtype=dtype)
    return lambda: model(pixel_values=x)


def resnet(layers, depths, dtype=torch.float32):
    sizes = [64, 128, 256, 512] if layers == "basic" else [256, 512, 1024, 2048]
    model = t.ResNetForImageClassification(t.ResNetConfig(layer_type=layers, depths=depths, hidden_sizes=sizes))
    model, x = model.eval().to(dtype), torch.randn(1, 3, 224, 224, dtype=dtype)
    return lambda: model(pixel_values=x)


def clip_text():
    config = t.CLIPTextConfig(num_hidden_layers=6)
    model = t.CLIPTextModel(config).eval()
    x = ids(4, 77, 49000)
    return lambda: model(input_ids=x)


CASES = {
    "bert b1": lambda: bert(1),
    "bert b32": lambda: bert(32),
    "MiniLM 1x128": lambda: bert(1),
    "MiniLM 32x128": lambda: bert(32),
    "distilbert b1": lambda: distilbert(1),
    "distilbert b8": lambda: distilbert(8),
    "modernbert": modernbert,
    "t5 encoder": lambda: t5(False),
    "flan-t5 encoder": lambda: t5(True),
    "whisper encoder": lambda: whisper(False),
    "clip vision": lambda: image(t.CLIPVisionModel, t.CLIPVisionConfig(num_hidden_layers=6)),
    "clip text": clip_text,
    "vit": vit,
    "vit:f16": lambda: vit(torch.float16),
    "vit:bf16": lambda: vit(torch.bfloat16),
    "dinov2": lambda: image(t.Dinov2Model, t.Dinov2Config(
        hidden_size=384, num_hidden_layers=3, num_attention_heads=6, image_size=518, patch_size=14), 518),
    "convnext tiny": lambda: image(t.ConvNextForImageClassification, t.ConvNextConfig()),
    "convnext atto": lambda: image(t.ConvNextForImageClassification, t.ConvNextConfig(
        hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2])),
    "efficientnet": lambda: image(t.EfficientNetForImageClassification, t.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280)),
    "resnet18": lambda: resnet("basic", [2, 2, 2, 2]),
    "resnet18:f16": lambda: resnet("basic", [2, 2, 2, 2], torch.float16),
    "resnet18:bf16": lambda: resnet("basic", [2, 2, 2, 2], torch.bfloat16),
    "resnet50": lambda: resnet("bottleneck", [3, 4, 6, 3]),
    "segformer": lambda: image(t.SegformerForSemanticSegmentation, t.SegformerConfig(num_labels=150)),
}
for name in LANGUAGE:
    CASES[f"{name} prefill"] = lambda name=name: language(name, False)
    if name != "stablelm":
        CASES[f"{name} decode"] = lambda name=name: language(name, True)
for name in ["llama", "qwen2"]:
    for dtype, short in [(torch.float16, "f16"), (torch.bfloat16, "bf16")]:
        for decode, what in [(False, "prefill"), (True, "decode")]:
            CASES[f"{name} {what}:{short}"] = lambda n=name, d=decode, t=dtype: language(n, d, t)


def median(run, seconds=2.0):
    for _ in range(2):
        run()
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def main():
    for name in sys.argv[1:] or CASES:
        try:
            with torch.inference_mode():
                run = CASES[name]() if name in CASES else None
                if run is not None:
                    print(f"torch {name}\t{median(run):.2f}", flush=True)
        except Exception as error:  # a model that is not there, or needs another package
            print(f"{name}: {error!r}"[:200], file=sys.stderr)


if __name__ == "__main__":
    main()
