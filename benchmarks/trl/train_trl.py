"""GRPO with TRL's GRPOTrainer and its tool calling: the program that a user of TRL writes for this task.

    python train_trl.py SETTINGS.json

The model calls `search`, reads what it finds and answers in <answer> tags; exact match is the reward.
"""

import json
import re
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from sleuth import Index
from sleuth.reward.answers import exact_match

settings = json.loads(Path(sys.argv[1]).read_text())
index = Index.open(settings["index"])
tokenizer = AutoTokenizer.from_pretrained(settings["model"], padding_side="left")
tokenizer.response_template = {  # TRL sets this by itself for the chat templates that it knows
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def search(query_list: list[str]):  # an annotated result would enter the prompt, as Sleuth's does not
    """Asks the search engine and shows the passages that it finds for each query.

    Args:
        query_list: What to search for, one query or several.
    """
    found = []
    for query, hits in zip(query_list, index.search(query_list, settings["k"]), strict=True):
        passages = [hit.passage for hit in hits]
        documents = [f"Doc {n} (Title: {each.title})\n{each.text.strip()}" for n, each in enumerate(passages, 1)]
        listed = "\n".join(documents) or "Nothing was found."
        found.append(listed if len(query_list) == 1 else f"For {query}:\n{listed}")
    ids = tokenizer("\n---\n".join(found), add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids[: settings["observation_tokens"]])


def reward_em(completions: list[list[dict[str, str]]], golden_answers: list[list[str]], **_: object) -> list[float]:
    found = [re.search(r"<answer>(.*?)</answer>", turns[-1]["content"], re.DOTALL) for turns in completions]
    answers = [match and match[1].strip() for match in found]
    return [exact_match(answer, golds) for answer, golds in zip(answers, golden_answers, strict=True)]


on_gpu, vllm = torch.cuda.is_available(), settings["vllm"]
trainer = GRPOTrainer(
    model=settings["model"],
    processing_class=tokenizer,
    reward_funcs=reward_em,
    tools=[search],
    train_dataset=load_dataset("json", data_files=settings["questions"], split="train"),
    args=GRPOConfig(
        output_dir=settings["out"],
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["rows"],
        gradient_accumulation_steps=settings["episodes"] // settings["rows"],
        num_generations=settings["samples"],
        max_completion_length=settings["completion_tokens"],
        max_tool_calling_iterations=settings["searches"],
        generation_kwargs={"max_tokens" if vllm else "max_new_tokens": settings["turn_tokens"]},
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="linear",
        weight_decay=0.01,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=False,
        use_vllm=vllm is not None,
        vllm_gpu_memory_utilization=vllm or 0.3,
        vllm_max_model_length=settings["context_tokens"],
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        seed=settings["seed"],
    ),
)
trainer.train()
trainer.save_model()
