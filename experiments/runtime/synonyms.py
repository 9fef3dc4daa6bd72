"""Names that other programs and papers use for what has another name here, for suggestions in errors."""

from __future__ import annotations

_OPTIONS = {
    ours: names.split()
    for ours, names in {
        # devices, precision
        "cuda": "gpu gpus nvidia cuda_gpu",
        "bf16": "bfloat16 mixed amp fp16 float16 half 16 bf16_mixed",
        "fp32": "float32 float full single 32",
        # backbones
        "decoder": "transformer transformer_decoder decoder_only autoregressive_transformer",
        "encoder": "transformer_encoder encoder_only bidirectional_transformer",
        "encoder_decoder": "seq2seq enc_dec bart transformer_encoder_decoder",
        "mamba": "mamba1 ssm selective_ssm s6",
        "mamba2": "ssd",
        "moe": "mixture_of_experts sparse_moe",
        "mixture_of_depths": "mod",
        "gla": "gated_linear_attention linear_attention",
        "deltanet": "delta_net delta_rule",
        "gated_deltanet": "gdn",
        "kda": "kimi kimi_linear kimi_delta_attention",
        "forgetting_attention": "fox forgetting_transformer",
        "diff_attention": "differential_transformer diff_transformer differential_attention diffllama",
        "deltaproduct": "delta_product gated_deltaproduct",
        "s4": "structured_state_space",
        "masked_diffusion": "mdlm diffusion dlm llada diffusion_lm discrete_diffusion",
        "block_diffusion": "bd3lm semi_autoregressive",
        # objectives
        "causal_lm": "lm clm ar autoregressive next_token gpt causal_language_modeling language_modeling",
        "masked_lm": "mlm bert masked_language_modeling",
        "multi_token": "mtp multi_token_prediction",
        "prefix_lm": "plm prefix_language_modeling",
        "span_corruption": "t5",
        "seq2seq": "translation sequence_to_sequence",
        "sequence_classification": "text_classification glue",
        "token_classification": "ner tagging",
        "any_order": "ardm ao_arm any_order_autoregression permutation_lm xlnet",
        "uniform_diffusion": "udlm uniform_state multinomial_diffusion",
        "denoising": "bart",
        # tasks
        "text": "lm language_modeling corpus",
        "recall": "mqar associative_recall ar",
        "induction": "induction_heads",
        "copying": "copy",
        "needle": "niah haystack",
        "openwebtext": "owt",
        # optimizers, schedules
        "adamw": "adam adam_w",
        "sgd": "momentum nesterov",
        "wsd": "warmup_stable_decay trapezoidal",
        "constant": "none fixed",
        "cosine": "cosine_annealing",
        # processes, tracking
        "none": "no single off false",
        "ddp": "dp data_parallel distributed",
        "fsdp": "zero deepspeed fsdp2 sharded",
        "tensor": "tp tensor_parallel",
        "off": "none no false disabled disable null",
        "wandb": "online weights_and_biases",
        "wandb_offline": "offline",
        "online": "on true wandb",
        "tensorboard": "tb",
        # sizes, budgets
        "nano": "tiny",
        "smoke": "test debug",
        "auto": "default",
        # what computes an operation
        "torch": "pytorch eager",
        "cpp": "c++ native",
        # commands
        "train": "fit run pretrain resume sweep",
        "evaluate": "test score",
        "evaluate downstream": "lm_eval harness",
        "evaluate samples": "sample_quality",
        "benchmark draw": "speed",
        "slurm prepare": "submit_prepare",
        "slurm submit": "submit sbatch",
        "slurm status": "squeue",
        "generate": "sample infer inference",
        "prepare": "tokenize tokenise preprocess",
        "plan": "list ls show dry_run",
        "compare": "results table analyze analyse analysis report html figures verdicts task_grid",
        "rates": "grid_search tune",
        "findings": "claims published ledger",
        "export board": "board leaderboard site scoreboard",
        "doctor": "env environment diagnose info",
        # keys of commands
        "study": "name study_name experiment",
        "--help": "help h usage",
        "--version": "version v",
    }.items()
}  # fmt: skip
"""For each option of any group, other names for it."""

KEYS = {
    ours: names.split()
    for ours, names in {
        "backbone": "model arch architecture model_name network",
        "backbone.attention.num_heads": "n_head n_heads num_heads nhead num_attention_heads heads",
        "backbone.block.dropout": "dropout resid_pdrop hidden_dropout_prob",
        "backbone.d_ff": "intermediate_size ffn_dim dim_feedforward n_inner",
        "backbone.d_model": "n_embd n_embed hidden_size dim embed_dim hidden_dim embedding_dim model_dim",
        "budget.batch_size": "batch_size bsz bs train_batch_size per_device_train_batch_size "
        "global_batch_size",
        "budget.micro_batch_size": "gradient_accumulation_steps grad_accum accumulate_grad_batches "
        "gradient_accumulation accum_steps",
        "budget.tokens": "epochs num_epochs max_epochs num_train_epochs n_epochs max_steps steps num_steps "
        "max_iters iters iterations total_steps train_steps num_training_steps tokens",
        "continue_from": "resume resume_from resume_from_checkpoint",
        "device": "gpus gpu cuda accelerator devices",
        "device.precision": "precision dtype bf16 fp16 amp mixed_precision torch_dtype",
        "init_from": "checkpoint ckpt ckpt_path pretrained load_from model_name_or_path from_pretrained",
        "objective": "loss loss_fn criterion",
        "optimizer": "optim opt",
        "optimizer.betas": "beta1 beta2 adam_beta1 adam_beta2 betas",
        "optimizer.clip_norm": "grad_clip max_grad_norm gradient_clip_val gradient_clipping clip_grad_norm",
        "optimizer.eps": "adam_epsilon epsilon",
        "optimizer.learning_rate": "lr learning_rate max_lr peak_lr base_lr",
        "optimizer.min_lr_ratio": "min_lr lr_min",
        "optimizer.schedule": "scheduler lr_scheduler lr_scheduler_type lr_schedule decay",
        "optimizer.warmup_fraction": "warmup warmup_steps warmup_ratio num_warmup_steps warmup_iters",
        "optimizer.weight_decay": "wd weight_decay",
        "num_samples": "num_return_sequences n_samples",
        "run": "model checkpoint ckpt ckpt_path model_path model_name_or_path path folder",
        "runs": "output_dir out_dir outdir save_dir log_dir logdir workdir default_root_dir",
        "scale": "size model_size",
        "scale.depth": "n_layer n_layers num_layers num_hidden_layers depth layers",
        "seed": "random_seed manual_seed rng_seed seeds",
        "study.name": "name run_name experiment exp_name experiment_name",
        "task": "data dataset dataset_name corpus data_path",
        "task.sequence_length": "seq_len seqlen seq_length max_length max_len max_seq_len max_seq_length "
        "block_size context_length ctx_len n_ctx n_positions max_position_embeddings",
        "task.tokenizer.kind": "tokenizer tokenizer_name",
        "task.tokenizer.vocab_size": "vocab_size n_vocab",
        "to": "out output output_dir out_dir",
        "tracking": "wandb logger report_to",
        "tracking.project": "project wandb_project project_name",
        "trainer.checkpoint_every": "save_every save_steps save_interval checkpoint_interval",
        "trainer.compile": "compile torch_compile",
        "trainer.evaluate_every": "eval_every eval_interval eval_steps val_check_interval evaluation_steps",
        "trainer.log_every": "log_interval logging_steps log_steps log_every_n_steps print_every",
    }.items()
}  # fmt: skip
"""For each dotted key, other names for it."""

SYNONYMS = _OPTIONS | {key.rpartition(".")[2]: names for key, names in KEYS.items()}
"""For each option, and for each key without those above it, other names for it."""
