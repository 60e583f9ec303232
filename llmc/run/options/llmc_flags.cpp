// llmc_flags.cpp - the table; scripts/COMING_FROM.md compares all flags of llm.c and nanoGPT with ours
#include "llmc/run/options/llmc_flags.h"

#include <algorithm>
#include <cctype>

#include "kernels/base/error.h"

namespace llmc {
namespace {

// Names of other programs, in lower case, with underscores and separated by spaces; "flag=value" is a value of our
// flag. A name may have several rows: one for each of our programs, which uses the first row whose flag it has.
struct Row { std::string_view theirs, ours, remark; };

constexpr std::string_view kByMpi = "mpirun or srun sets it: scripts/run_one_node.sh, scripts/run_two_nodes.sh";
constexpr std::string_view kSizes = "custom:l=12,h=12,c=768[,t=1024][,v=50257]";
constexpr std::string_view kNoFp16 = "fp16 would need loss scaling; bf16 (--dtype bf16) does not";

constexpr Row kRows[] = {
    // Data and model
    {"dataset data data_dir data_path dataset_name dataset_path train_file train_data_path train_bin input_bin input",
     "--train-data", "a glob of shards that dev/tokenize or dev/data/prepare writes; --val-data for validation"},
    {"data_weights weights mixture data_mix dataset_weights mixture_weights blend", "--train-data",
     "with a weight after each pattern: 'web_*.bin:0.7' 'books_*.bin:0.3'"},
    {"val_file validation_file eval_data valid_data val_bin input_val_bin", "--val-data", "a glob of shards"},
    {"init_from model model_name model_path model_name_or_path model_type model_size pretrained flavor ckpt", "--init",
     "a size such as d12, or a folder with a model; --resume auto resumes a run"},
    {"n_layer n_head n_embd n_layers n_heads num_layers num_heads num_hidden_layers num_attention_heads hidden_size "
     "d_model dim embed_dim vocab_size",
     "--init", kSizes},
    {"bias", "", "GPT-2's biases are always present"},
    {"rope use_rope rotary rope_theta alibi", "", "positions are learned, as in GPT-2"},
    {"mup use_mup", "", "initial weights and learning rates are GPT-2's; dev/sweep.sh compares rates"},
    {"dropout attention_dropout resid_pdrop", "", "models are trained without dropout"},
    {"tokenizer tokenizer_name tokenizer_path", "--merges", "the shards name their vocabulary; see dev/tokenize"},
    {"out_dir output out save_dir log_dir logging_dir run_dir dump_folder checkpoint_dir", "--output-dir", ""},
    {"overwrite overwrite_output_dir", "", "a run does not overwrite another: use a new --output-dir or --resume auto"},
    // Batch and length
    {"batch_size bs mbs micro_batch_size local_batch_size device_batch_size train_batch_size "
     "per_device_train_batch_size",
     "--micro-batch", "sequences in one pass of a rank; --total-batch-tokens is the size of a step"},
    {"eval_batch_size per_device_eval_batch_size", "--micro-batch", "also the batch of validation"},
    {"gradient_accumulation_steps grad_accum_steps grad_accum global_batch_size total_batch_size",
     "--total-batch-tokens", "in tokens: sequences of a step over all ranks times --seq-len"},
    {"rampup_batch_size step_batch_size_schedule batch_size_schedule batch_ramp batch_size_warmup", "--batch-schedule",
     "FROM:TOKENS,...: the tokens of a step, by the tokens before it"},
    {"block_size context_length context_size ctx_len max_seq_len max_seq_length max_length sequence_length seq_length "
     "n_ctx n_positions model_max_length",
     "--seq-len", ""},
    {"max_iters steps num_steps n_steps iters iterations num_iterations train_steps training_steps train_iters "
     "total_steps max_train_steps num_train_steps lr_decay_iters lr_decay_steps",
     "--max-steps", "the learning rate decays until the last step"},
    {"num_train_epochs num_epochs n_epochs max_epochs", "--epochs", "used if --max-steps is 0"},
    // Optimizer
    {"learning_rate max_lr peak_lr base_lr", "--lr", ""},
    {"min_lr minimum_lr final_lr end_lr min_learning_rate minimum_learning_rate learning_rate_decay_frac "
     "min_lr_factor",
     "--final-lr-fraction", "a fraction of --lr, not a learning rate"},
    {"warmup_iters warmup num_warmup_steps lr_warmup_iters", "--warmup-steps", ""},
    {"warmup_ratio warmup_frac warmup_fraction", "--warmup-steps", "in steps: the ratio times --max-steps"},
    {"decay_lr lr_scheduler lr_scheduler_type lr_decay_style scheduler schedule decay_type", "--lr-schedule",
     "--help lists them"},
    {"decay_ratio cooldown_frac cooldown_steps cooldown_iters decay_steps num_decay_steps warmdown_steps "
     "warmdown_iters",
     "--cooldown-fraction", "with --lr-schedule wsd; a share of the run, not steps"},
    {"adam_beta1 beta_1", "--beta1", ""},
    {"betas", "--beta1", "and --beta2"},
    {"adam_beta2 beta_2", "--beta2", ""},
    {"adam_epsilon adam_eps epsilon", "--eps", ""},
    {"wd", "--weight-decay", ""},
    {"max_grad_norm max_norm clip_grad clip_grad_norm gradient_clipping gradient_clip_val", "--grad-clip", ""},
    {"sl", "--skip-loss-z", ""},
    {"sg", "--skip-norm-z", ""},
    {"optim", "--optimizer", ""},
    {"muon use_muon", "--optimizer muon", ""},
    {"adam adamw use_adamw", "--optimizer adamw", "otherwise the run takes muon"},
    {"onebit_adam", "--optimizer onebit-adam", ""},
    {"ema use_ema ema_decay model_ema swa use_swa", "",
     "the decay of the learning rate (--lr-schedule) averages the last steps"},
    {"lora peft use_lora use_peft lora_r lora_rank qlora", "",
     "all weights are trained, also with configs/finetune.json"},
    // Evaluation, samples, checkpoints, log
    {"eval_interval eval_steps eval_every eval_freq eval_strategy evaluation_strategy val_interval val_check_interval "
     "val_loss_every",
     "--val-every", "in steps"},
    {"m eval_iters eval_batches val_max_steps max_eval_samples", "--val-tokens", "it counts tokens, not batches"},
    {"early_stopping early_stop early_stopping_patience patience", "--stop-after",
     "in validations without a lower loss (--val-every); 0: off"},
    {"eval do_eval", "--eval-only", "without it a run trains, and validates every --val-every steps"},
    {"do_train train", "", "a run trains unless it has --eval-only"},
    {"h", "--hellaswag", "it takes a file; -h alone prints the help"},
    {"max_new_tokens max_tokens n_predict", "--tokens", ""},
    {"max_new_tokens", "--sample-tokens", ""},
    {"num_samples n_samples num_return_sequences", "--samples", ""},
    {"start text input", "--prompt", ""},
    {"do_sample greedy", "--temperature", "0: always the most likely token"},
    {"save_every save_steps save_interval save_freq save_strategy checkpoint_interval checkpointing_steps "
     "ckpt_interval always_save_checkpoint",
     "--checkpoint-every", "in steps; 0: only at the end"},
    {"nk save_total_limit keep_latest_k", "--keep-checkpoints", ""},
    {"nm", "--major-every", ""},
    {"load_best_model_at_end save_best save_best_only save_best_model", "--keep-best", ""},
    {"resume_from resume_from_checkpoint", "--resume", "auto, or the folder of a checkpoint"},
    {"log_interval logging_steps logging_interval log_freq log_every_n_steps print_every", "--log-every",
     "for the terminal; log.jsonl has every step"},
    {"lg", "--log-gpu", ""},
    {"push_to_hub hub_model_id hub_strategy", "hf upload",
     "after the run, without the optimizer's files: dev/README.md"},
    {"wandb wandb_log wandb_project wandb_run_name use_wandb report_to tensorboard trackio mlflow",
     "dev/export_runs.py", "it writes the log of a run for wandb, TensorBoard and others: dev/README.md"},
    // Precision and memory
    {"bf16 amp autocast precision mixed_precision", "--dtype bf16", ""},
    {"fp16 float16 half", "", kNoFp16},
    {"fp32 float32", "--dtype fp32", ""},
    {"w", "", "fp32 master weights are always kept"},
    {"allow_tf32", "--tf32", ""},
    {"gradient_checkpointing grad_checkpointing activation_checkpoint activation_checkpointing", "--recompute",
     "gelu, gelu+layernorm or block"},
    // Machine and ranks
    {"compile torch_compile", "", "the kernels are compiled with the program: nothing is compiled at startup"},
    {"ge", "", "autotuning decides whether GELU is fused into a matrix product"},
    {"flash flash_attn flash_attention use_flash_attn attn_implementation", "--attention", "auto takes the fastest"},
    {"full_determinism", "--deterministic", ""},
    {"random_seed manual_seed data_seed", "--seed", ""},
    {"cpu cuda gpu use_cpu no_cuda", "", "the build selects CPU or GPU: make DEVICE=cpu, make DEVICE=cuda"},
    {"num_workers dataloader_num_workers num_proc", "", "shards are read in the background by one thread"},
    {"pm pi backend dist_backend ddp_backend", "--comm", ""},
    {"zero ddp fsdp deepspeed data_parallel_shard_degree", "--zero-stage",
     "training is data-parallel with mpirun; stages 1 and 2 shard the optimizer state"},
    {"tp tensor_parallel_degree pipeline_parallel_degree", "", "training is only data-parallel"},
    {"pn pr pg ps pf pp gpus n_gpu num_gpus devices nproc nproc_per_node nnodes num_nodes world_size rank local_rank "
     "num_processes",
     "", kByMpi},
    // The tools in dev/
    {"model model_path model_name_or_path ckpt checkpoint_path init_from init out_dir", "--checkpoint", ""},
    {"num_workers num_proc nproc", "--threads", ""},
    {"val_fraction val_split validation_split test_size", "--hold-out", "every K-th document is held out"},
    {"val_fraction val_split validation_split test_size", "--val-data", "dev/tokenize --hold-out K writes shards"},
    // Values
    {"resume=0 resume=false resume=no resume=none", "never", ""},
    {"resume=1 resume=true resume=yes", "auto", ""},
    {"max_steps=-1", "0", "which is as many steps as --epochs or --max-minutes needs"},
    {"recompute=0", "none", ""},
    {"recompute=1", "gelu", ""},
    {"recompute=2", "gelu+layernorm", ""},
    {"dtype=bfloat16", "bf16", ""},
    {"dtype=float32 dtype=float", "fp32", ""},
    {"dtype=fp16 dtype=float16 dtype=half", "fp32 or bf16", kNoFp16},
    {"device=cuda device=gpu device=cpu device=auto device=mps", "the index of a GPU, from 0",
     "the build selects CPU or GPU: make DEVICE=cpu, make DEVICE=cuda"},
    {"lr_schedule=constant_with_warmup", "constant", "every schedule has a warm-up"},
    {"lr_schedule=warmup_stable_decay", "wsd", ""},
    {"optimizer=adam optimizer=adamw_torch optimizer=adamw_torch_fused", "adamw", ""},
    {"comm=gloo", "mpi", ""},
};

// In the spelling of the table: lower case, underscores.
std::string in_table(std::string_view name) {
    std::string text;
    for (const unsigned char c : name) text += c == '-' ? '_' : char(std::tolower(c));
    return text;
}

// Calls use(row) for the rows with this name, until it returns true.
template <class Use>
void find_row(const std::string& name, Use&& use) {
    const std::string word = ' ' + name + ' ';
    for (const Row& row : kRows)
        if ((' ' + std::string(row.theirs) + ' ').find(word) != word.npos && use(row)) return;
}

}  // namespace

void ForeignOption::refuse(const std::string& what) const {
    if (ours.empty()) throw Error(what + " is unknown; there is none, because " + remark);
    fail(what, "unknown", ours, remark);
}

std::optional<ForeignOption> foreign_option(std::string_view name, const std::vector<std::string>& flags) {
    name = name.substr(0, name.find_first_of("= "));
    name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
    name.remove_prefix(name.rfind('.') + 1);  // the section; npos + 1 is 0
    const auto have = [&](std::string_view flag) { return std::ranges::find(flags, flag) != flags.end(); };
    const std::string theirs = in_table(name);
    std::string spelled = "--" + theirs;
    std::ranges::replace(spelled, '_', '-');
    if (have(spelled)) return ForeignOption{spelled, {}};
    if (spelled.starts_with("--no-") && have("--" + spelled.substr(5)))
        return ForeignOption{"--" + spelled.substr(5) + "=off", {}};
    const bool trains = have("--train-data");
    std::optional<ForeignOption> found;
    find_row(theirs, [&](const Row& row) {
        if (row.ours.starts_with("--") ? !have(row.ours.substr(0, row.ours.find(' '))) : !trains) return false;
        found = ForeignOption{std::string(row.ours), std::string(row.remark)};
        return true;
    });
    return found;
}

void refuse_foreign_flag(const std::string& word, const std::vector<std::string>& flags) {
    if (!word.starts_with('-')) return;
    if (const auto option = foreign_option(word, flags))
        option->refuse("the flag " + in_quotes(word.substr(0, word.find('='))));
}

void refuse_foreign_value(std::string_view flag, std::string_view what, std::string_view value) {
    const auto refuse = [&](std::string_view ours, std::string_view remark) {
        fail(what, in_quotes(value), ours, remark.empty() ? "llm.c's value has that name here" : remark);
    };
    constexpr std::string_view kLlmcDescriptor = "gpt2:";  // precedes names such as d12
    if (flag == "--init" && value.starts_with(kLlmcDescriptor)) refuse(value.substr(kLlmcDescriptor.size()), "");
    std::string theirs = in_table(flag.substr(2)) + '=';
    for (const unsigned char c : value.substr(0, value.find(':'))) theirs += char(std::tolower(c));  // cuda:0
    find_row(theirs, [&](const Row& row) { refuse(row.ours, row.remark); return true; });
}

}  // namespace llmc
