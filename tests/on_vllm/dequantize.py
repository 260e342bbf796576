"""A script that converts the local model's GGUF file to a folder for vLLM: python dequantize.py GGUF FOLDER."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

gguf = Path(sys.argv[1])
folder = Path(sys.argv[2])
source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
model = AutoModelForCausalLM.from_pretrained(
    **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
