// bench_kernels.cpp - how fast every operation but the matrix products runs, at the shapes of GPT-2 124M
//
// Prints one line per operation and type: median time, bytes or flops as the contract counts them, and on a CPU the ratio to a plain loop
// (dev/plain_loops.h) timed right after it: below 1 is faster. Tensors that fit into a cache stay there between calls, as they do within a step.
#include <cstdio>
#include <cxxopts.hpp>
#include <functional>
#include <iostream>
#include <random>

#include "dev/bench.h"
#include "dev/plain_loops.h"
#include "kernels/attention.h"
#include "kernels/bias_gradient.h"
#include "kernels/embedding.h"
#include "llmc/error.h"

namespace {

using kernels::bf16;
using llmc::DeviceArray;

struct Options {
    int rows, seq_len, channels, heads, vocabulary, padded_vocabulary, classifier_rows, threads;
    std::int64_t parameters;
    double budget;
    std::string only, dtype;
};

Options parse(int argc, char** argv) {
    cxxopts::Options parser("bench_kernels", "times every operation but the matrix products");
    parser.add_options()
        ("rows", "rows of the activations: batch * seq-len", cxxopts::value<int>()->default_value("1024"))
        ("seq-len", "positions of one sequence", cxxopts::value<int>()->default_value("256"))
        ("channels", "width of the model", cxxopts::value<int>()->default_value("768"))
        ("heads", "attention heads", cxxopts::value<int>()->default_value("12"))
        ("vocabulary", "token ids", cxxopts::value<int>()->default_value("50257"))
        ("padded-vocabulary", "columns of the logits", cxxopts::value<int>()->default_value("50304"))
        ("classifier-rows", "rows of one chunk of logits", cxxopts::value<int>()->default_value("256"))
        ("parameters", "elements for the optimizer and the norm, a multiple of 16", cxxopts::value<std::int64_t>()->default_value("124475904"))
        ("threads", "CPU threads; 0: all", cxxopts::value<int>()->default_value("0"))
        ("budget", "seconds to spend on each figure", cxxopts::value<double>()->default_value("0.3"))
        ("only", "operations whose name contains this", cxxopts::value<std::string>()->default_value(""))
        ("dtype", "fp32, bf16 or both", cxxopts::value<std::string>()->default_value("both"))
        ("help", "print this");
    const auto parsed = parser.parse(argc, argv);
    if (parsed.count("help")) {
        std::cout << parser.help();
        std::exit(0);
    }
    const Options o{parsed["rows"].as<int>(), parsed["seq-len"].as<int>(), parsed["channels"].as<int>(), parsed["heads"].as<int>(),
                    parsed["vocabulary"].as<int>(), parsed["padded-vocabulary"].as<int>(), parsed["classifier-rows"].as<int>(),
                    parsed["threads"].as<int>(), parsed["parameters"].as<std::int64_t>(), parsed["budget"].as<double>(),
                    parsed["only"].as<std::string>(), parsed["dtype"].as<std::string>()};
    require(o.seq_len > 0 && o.rows > 0 && o.rows % o.seq_len == 0, "--rows", o.rows, "a multiple of --seq-len");
    require(o.channels > 0 && o.heads > 0 && o.channels % o.heads == 0, "--channels", o.channels, "a multiple of --heads");
    require(o.vocabulary > 0, "--vocabulary", o.vocabulary, "at least 1");
    require(o.classifier_rows > 0, "--classifier-rows", o.classifier_rows, "at least 1");
    require(o.parameters > 0 && o.parameters % 16 == 0, "--parameters", o.parameters, "a positive multiple of 16");
    require(o.dtype == "fp32" || o.dtype == "bf16" || o.dtype == "both", "--dtype", o.dtype, "fp32, bf16 or both");
    return o;
}

// Numbers in [-1, 1) * scale from a repeated block of random ones: filling gigabytes must not take longer than timing them.
template <class T> DeviceArray<T> filled(std::size_t size, float scale = 1) {
    std::minstd_rand engine(unsigned(size % 9973 + 1));
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<T> block(std::min<std::size_t>(size, 1 << 20));
    for (T& x : block) x = plain::narrow<T>(uniform(engine));
    DeviceArray<T> array(size);
    for (std::size_t first = 0; first < size; first += block.size())
        llmc::copy_to_device(&array.span()[first], block.data(), std::min(block.size(), size - first) * sizeof(T), nullptr);
    llmc::wait(nullptr);
    return array;
}
template <class T> DeviceArray<T> from_host(const std::vector<T>& host) {
    DeviceArray<T> array(std::span<const T>(host), nullptr);
    llmc::wait(nullptr);
    return array;
}
std::vector<int> random_ids(int size, int below) {
    std::mt19937 engine(7);
    std::vector<int> ids(size);
    for (int& id : ids) id = int(engine() % unsigned(below));
    return ids;
}

enum class Unit { bytes, flops };

class Table {
public:
    Table(const Options& options, bool host) : options_(options), host_(host) {
        std::printf("%-27s %-5s %-22s %10s %9s %-8s %8s\n", "operation", "dtype", "shape", "ms", "", "", "x plain");
    }
    bool wanted(const std::string& name) const { return name.find(options_.only) != std::string::npos; }
    // `work` is bytes or flops of one call; an empty `loop` has no plain loop to compare with.
    void time(const char* name, const char* dtype, const std::string& shape, double work, Unit unit, const std::function<void()>& call,
              const std::function<void()>& loop = {}) const {
        if (!wanted(name)) return;
        const double seconds = bench::median_seconds(call, options_.budget);
        std::printf("%-27s %-5s %-22s %10.3f %9.1f %-8s", name, dtype, shape.c_str(), seconds * 1e3, work / seconds * 1e-9,
                    unit == Unit::bytes ? "GB/s" : "GFLOP/s");
        if (host_ && loop) std::printf(" %8.2f\n", seconds / bench::median_seconds(loop, options_.budget));
        else std::printf(" %8s\n", "n/a");
        std::fflush(stdout);
    }

private:
    const Options& options_;
    bool host_;  // device memory is host memory: a plain loop may run on it
};

std::string shape(std::initializer_list<std::int64_t> sizes) {
    std::string text;
    for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
    return text;
}

template <class T>
void time_embedding(const Options& o, const Table& table, const char* dtype) {
    const std::size_t elements = std::size_t(o.rows) * o.channels;
    const auto out = filled<T>(elements), tokens_table = filled<T>(std::size_t(o.padded_vocabulary) * o.channels);
    const auto positions = filled<T>(std::size_t(o.seq_len) * o.channels);
    const auto ids = random_ids(o.rows, o.vocabulary);
    const auto tokens = from_host(ids);
    const int batch = o.rows / o.seq_len;
    table.time("embedding forward", dtype, shape({o.rows, o.channels}), 3.0 * elements * sizeof(T), Unit::bytes,
        [&] {
            kernels::embedding_forward<T>({out.span(), tokens.span(), tokens_table.span(), positions.span(), batch, o.seq_len, o.channels}, nullptr);
        },
        [&] { plain::embedding_forward<T>(out.span(), tokens.span(), tokens_table.span(), positions.span(), o.seq_len, o.channels); });

    const auto buckets = kernels::bucket_rows_by_token(ids, o.vocabulary);
    const auto bucket_token = from_host(buckets.token), bucket_start = from_host(buckets.start), bucket_row = from_host(buckets.row);
    const auto dtokens = filled<float>(tokens_table.size()), dpositions = filled<float>(positions.size());
    const double rows_touched = double(buckets.token.size()) + o.seq_len;
    const double bytes = 2.0 * elements * sizeof(T) + 2.0 * rows_touched * o.channels * sizeof(float);
    table.time("embedding backward", dtype, shape({o.rows, o.channels}), bytes, Unit::bytes,
        [&] {
            kernels::embedding_backward<T>({dtokens.span(), dpositions.span(), out.span(), bucket_token.span(), bucket_start.span(),
                                            bucket_row.span(), batch, o.seq_len, o.channels, o.seq_len, true}, nullptr);
        },
        [&] { plain::embedding_backward<T>(dtokens.span(), dpositions.span(), tokens.span(), out.span(), o.seq_len, o.channels); });
}

template <class T>
void time_layernorm(const Options& o, const Table& table, const char* dtype) {
    const std::size_t elements = std::size_t(o.rows) * o.channels;
    const auto left = filled<T>(elements), right = filled<T>(elements), residual = filled<T>(elements), normed = filled<T>(elements);
    const auto weight = filled<T>(o.channels), bias = filled<T>(o.channels);
    const auto mean = filled<float>(o.rows), rstd = filled<float>(o.rows), dweight = filled<float>(o.channels), dbias = filled<float>(o.channels);
    const auto scratch = filled<float>(kernels::layernorm_backward_scratch(o.channels));
    const double bytes = double(elements) * sizeof(T);
    const std::string size = shape({o.rows, o.channels});
    const kernels::LayerNormForward<T> forward{normed.span(), mean.span(), rstd.span(), residual.span(), weight.span(), bias.span(), o.rows,
                                               o.channels};
    table.time("layernorm forward", dtype, size, 2 * bytes, Unit::bytes, [&] { kernels::layernorm_forward(forward, nullptr); },
               [&] { plain::layernorm_forward(forward); });
    const kernels::ResidualLayerNormForward<T> fused{residual.span(), normed.span(), mean.span(), rstd.span(), left.span(), right.span(),
                                                     weight.span(), bias.span(), o.rows, o.channels};
    table.time("residual layernorm forward", dtype, size, 4 * bytes, Unit::bytes, [&] { kernels::residual_layernorm_forward(fused, nullptr); },
               [&] { plain::residual_layernorm_forward(fused); });
    const kernels::LayerNormBackward<T> backward{left.span(), dweight.span(), dbias.span(), scratch.span(), normed.span(), residual.span(),
                                                 weight.span(), mean.span(), rstd.span(), o.rows, o.channels, true, true};
    table.time("layernorm backward", dtype, size, 4 * bytes, Unit::bytes, [&] { kernels::layernorm_backward(backward, nullptr); },
               [&] { plain::layernorm_backward(backward); });
}

template <class T>
void time_gelu_and_bias(const Options& o, const Table& table, const char* dtype) {
    const int wide = 4 * o.channels;
    const std::size_t elements = std::size_t(o.rows) * wide;
    const auto in = filled<T>(elements, 3), out = filled<T>(elements), dout = filled<T>(elements);
    const double bytes = double(elements) * sizeof(T);
    const std::string size = shape({o.rows, wide});
    const kernels::GeluForward<T> forward{out.span(), in.span()};
    table.time("gelu forward", dtype, size, 2 * bytes, Unit::bytes, [&] { kernels::gelu_forward(forward, nullptr); },
               [&] { plain::gelu_forward(forward); });
    const kernels::GeluBackward<T> backward{out.span(), dout.span(), in.span()};
    table.time("gelu backward", dtype, size, 3 * bytes, Unit::bytes, [&] { kernels::gelu_backward(backward, nullptr); },
               [&] { plain::gelu_backward(backward); });
    const auto dbias = filled<float>(wide), scratch = filled<float>(kernels::bias_gradient_scratch(wide));
    table.time("bias_gradient", dtype, size, bytes, Unit::bytes,
        [&] { kernels::bias_gradient<T>({dbias.span(), scratch.span(), dout.span(), o.rows, wide, false}, nullptr); },
        [&] { plain::bias_gradient<T>(dbias.span(), dout.span(), o.rows, wide); });
}

template <class T>
void time_attention(const Options& o, const Table& table, const char* dtype) {
    const int batch = o.rows / o.seq_len, head_size = o.channels / o.heads;
    const std::size_t elements = std::size_t(o.rows) * o.channels;
    const auto qkv = filled<T>(3 * elements), dqkv = filled<T>(3 * elements), out = filled<T>(elements), dout = filled<T>(elements);
    const auto logsumexp = filled<float>(std::size_t(o.rows) * o.heads), delta = filled<float>(logsumexp.size());
    const double flops = 4.0 * batch * o.heads * double(o.seq_len) * o.seq_len / 2 * head_size;
    const std::string size = shape({batch, o.heads, o.seq_len, head_size});
    const kernels::AttentionForward<T> forward{out.span(), logsumexp.span(), qkv.span(), batch, o.seq_len, o.heads, head_size};
    table.time("attention forward", dtype, size, flops, Unit::flops,
        [&] { kernels::attention_forward(forward, nullptr); },
        [&] { plain::attention_forward<T>(out.span(), qkv.span(), batch, o.seq_len, o.heads, head_size); });
    kernels::attention_forward(forward, nullptr);  // the backward pass reads its results
    const kernels::AttentionBackward<T> backward{dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(), logsumexp.span(), batch, o.seq_len,
                                                 o.heads, head_size};
    table.time("attention backward", dtype, size, 2.5 * flops, Unit::flops, [&] { kernels::attention_backward(backward, nullptr); });
}

template <class T>
void time_classifier(const Options& o, const Table& table, const char* dtype) {
    const std::size_t elements = std::size_t(o.classifier_rows) * o.padded_vocabulary;
    const auto logits = filled<T>(elements, 5);
    const auto losses = filled<float>(o.classifier_rows);
    const auto targets = from_host(random_ids(o.classifier_rows, o.vocabulary));
    kernels::Classifier<T> op{logits.span(), losses.span(), targets.span(), o.classifier_rows, o.vocabulary, o.padded_vocabulary, 1.0f / 1024, false};
    const std::string size = shape({o.classifier_rows, o.padded_vocabulary});
    const double bytes = double(elements) * sizeof(T);
    table.time("classifier, loss only", dtype, size, bytes, Unit::bytes, [&] { kernels::classifier(op, nullptr); }, [&] { plain::classifier(op); });
    op.write_dlogits = true;
    table.time("classifier", dtype, size, 2 * bytes, Unit::bytes, [&] { kernels::classifier(op, nullptr); }, [&] { plain::classifier(op); });
}

void time_squared_norm(const Options& o, const Table& table) {
    const auto values = filled<float>(std::size_t(o.parameters), 0.01f);
    const auto partial = filled<double>(std::size_t(kernels::squared_norm_partials()));
    volatile double sink = 0;
    table.time("squared_norm", "fp32", shape({o.parameters}), 4.0 * double(o.parameters), Unit::bytes,
        [&] { kernels::squared_norm(partial.span(), values.span(), nullptr); }, [&] { sink = plain::squared_norm(values.span()); });
}

template <class T>
void time_adamw(const Options& o, const Table& table, const char* dtype) {
    const auto elements = std::size_t(o.parameters);
    const auto master = filled<float>(elements), m = filled<float>(elements, 0.001f), grad = filled<float>(elements, 0.01f);
    const auto parameter = filled<T>(sizeof(T) == sizeof(float) ? 0 : elements);
    DeviceArray<float> v(elements);
    v.zero(nullptr);
    std::vector<kernels::DecaySegment> segments;  // as many as GPT-2 124M has tensors
    for (int i = 1; i <= 148; ++i) segments.push_back({o.parameters / 16 * i / 148 * 16, i % 2});
    const auto device_segments = from_host(segments);
    kernels::StepScalars step{};
    step.adam_step = 10;
    step.learning_rate = 6e-4f;
    step.grad_scale = 1;
    step.first_correction = step.second_correction = 1.5f;
    const auto scalars = from_host(std::vector<kernels::StepScalars>{step});
    std::span<T> parameters = parameter.span();
    if constexpr (sizeof(T) == sizeof(float)) parameters = master.span();
    const kernels::AdamW<T> op{parameters, master.span(), m.span(), v.span(), grad.span(), device_segments.span(), scalars.span(), 0.9f, 0.95f, 1e-8f,
                               0.1f};
    const double bytes = double(elements) * (sizeof(T) == sizeof(float) ? 28 : 30);
    table.time("adamw", dtype, shape({o.parameters}), bytes, Unit::bytes, [&] { kernels::adamw(op, nullptr); }, [&] { plain::adamw(op); });
    if constexpr (sizeof(T) != sizeof(float)) {
        kernels::AdamW<T> stochastic = op;
        stochastic.rounding = {.stochastic = true, .seed = 1};
        table.time("adamw, stochastic rounding", dtype, shape({o.parameters}), bytes, Unit::bytes, [&] { kernels::adamw(stochastic, nullptr); });
    }
}

template <class T>
void time_all(const Options& o, const Table& table, const char* dtype) {
    if (table.wanted("embedding forward") || table.wanted("embedding backward")) time_embedding<T>(o, table, dtype);
    time_layernorm<T>(o, table, dtype);
    time_gelu_and_bias<T>(o, table, dtype);
    if (table.wanted("attention forward") || table.wanted("attention backward")) time_attention<T>(o, table, dtype);
    if (table.wanted("classifier, loss only")) time_classifier<T>(o, table, dtype);
    if (table.wanted("adamw, stochastic rounding")) time_adamw<T>(o, table, dtype);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Options options = parse(argc, argv);
        const llmc::DeviceInfo device = llmc::open_device(options.threads);
        std::printf("%s, %d threads\n", device.name.c_str(), device.threads);
        const Table table(options, device.kind != "cuda");
        if (options.dtype != "bf16") time_all<float>(options, table, "fp32");
        if (options.dtype != "fp32") time_all<bf16>(options, table, "bf16");
        if (table.wanted("squared_norm")) time_squared_norm(options, table);
    } catch (const Error& error) {
        std::fprintf(stderr, "bench_kernels: %s\n", error.what());
        return error.blame() == Blame::input ? 2 : 1;
    } catch (const cxxopts::exceptions::exception& error) {
        std::fprintf(stderr, "bench_kernels: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_kernels: %s\n", error.what());
        return 1;
    }
}
