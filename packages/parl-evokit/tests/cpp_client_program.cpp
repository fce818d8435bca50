// What the tests run of evokit_client.cpp: one command a behaviour. See test_reference_clients.py.
#include <atomic>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <sys/wait.h>
#include <unistd.h>

#include "evokit_client.h"

namespace {

int failed() {
    std::fprintf(stderr, "%s\n", evokit_error());
    return 1;
}

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// noise QUANTILES SEED TABLE KEY START COUNT STD: one line a coordinate: unit, bits of (c + 1) / 64 + noise
int noise(char **given) {
    evokit_noise *made = evokit_noise_open(given[0], std::strtoull(given[1], nullptr, 10), std::strtoull(given[2], nullptr, 10));
    if (!made) return failed();
    uint64_t key = std::strtoull(given[3], nullptr, 10), start = std::strtoull(given[4], nullptr, 10);
    size_t count = std::strtoull(given[5], nullptr, 10);
    std::vector<int16_t> units(count);
    std::vector<float> theta(count);
    for (size_t i = 0; i < count; i++) theta[i] = static_cast<float>(static_cast<double>(start + i + 1) / 64);
    evokit_units(made, key, start, count, units.data());
    evokit_perturb(made, key, start, count, std::strtof(given[6], nullptr), theta.data(), theta.data());
    for (size_t i = 0; i < count; i++) std::printf("%d %08x\n", units[i], bits_of(theta[i]));
    evokit_noise_close(made);
    return 0;
}

// record KEY MODEL FINGERPRINT REWARD: the record and its frame
int record(char **given) {
    evokit_info info = {std::strtoull(given[0], nullptr, 10), 0, static_cast<uint32_t>(std::strtoul(given[1], nullptr, 10)),
                        static_cast<uint32_t>(std::strtoul(given[2], nullptr, 10))};
    float reward = std::strtof(given[3], nullptr);
    uint8_t bytes[96], frame[104];
    size_t n = evokit_record(bytes, &info, &reward, 0, 0), m = evokit_frame(frame, bytes, static_cast<uint16_t>(n));
    for (size_t i = 0; i < n; i++) std::printf("%02x", bytes[i]);
    for (size_t i = 0; i < m; i++) std::printf("%s%02x", i ? "" : "\n", frame[i]);
    std::printf("\n");
    return 0;
}

// issue SECRET NOW LIFETIME, lines "key identity model fingerprint" on standard input: a token each
int issue(char **given) {
    evokit_tokens *tokens = evokit_tokens_load(given[0], std::strtod(given[2], nullptr));
    if (!tokens) return failed();
    evokit_info info;
    char token[EVOKIT_TOKEN_SIZE];
    while (std::cin >> info.key >> info.identity >> info.model_iter_id >> info.fingerprint) {
        if (evokit_token_issue_at(tokens, std::strtod(given[1], nullptr), &info, token)) return failed();
        std::puts(token);
    }
    evokit_tokens_close(tokens);
    return 0;
}

// redeem SECRET NOW, a token a line: "reason key identity model fingerprint" each
int redeem(char **given) {
    evokit_tokens *tokens = evokit_tokens_load(given[0], 1);
    if (!tokens) return failed();
    for (std::string token; std::getline(std::cin, token);) {
        evokit_info info = {0, 0, 0, 0};
        int reason = evokit_token_redeem_at(tokens, std::strtod(given[1], nullptr), token.c_str(), &info);
        std::printf("%d %llu %llu %u %u\n", reason, static_cast<unsigned long long>(info.key),
                    static_cast<unsigned long long>(info.identity), info.model_iter_id, info.fingerprint);
    }
    evokit_tokens_close(tokens);
    return 0;
}

// full SECRET ROTATED TOKEN of the rotated secret: the reason for which it is refused while the process can open no more
// files, and that after it can
int full(char **given) {
    evokit_tokens *tokens = evokit_tokens_load(given[0], 3600);
    if (!tokens || std::rename(given[1], given[0])) return failed();
    rlimit least = {64, 64};
    if (setrlimit(RLIMIT_NOFILE, &least)) return failed();
    std::vector<int> files;
    for (int file; (file = open("/dev/null", O_RDONLY)) >= 0;) files.push_back(file);
    evokit_info info;
    const int reason = evokit_token_redeem(tokens, given[2], &info);
    for (int file : files) close(file);
    std::printf("%d %d\n", reason, evokit_token_redeem(tokens, given[2], &info));
    evokit_tokens_close(tokens);
    return 0;
}

// rotated SECRET, a line for each turn: what a service that has loaded the secrets once finds in their file, and a token
int rotated(char **given) {
    evokit_tokens *tokens = evokit_tokens_load(given[0], 3600);
    if (!tokens) return failed();
    for (std::string turn; std::getline(std::cin, turn); std::fflush(stdout)) {
        evokit_info info = {42, 0, 3, 9};
        char token[EVOKIT_TOKEN_SIZE];
        int found = evokit_tokens_refresh(tokens);
        if (evokit_token_issue(tokens, &info, token)) return failed();
        std::printf("%d %s %s\n", found, token, found < 0 ? evokit_error() : "");
    }
    evokit_tokens_close(tokens);
    return 0;
}

// serve MODELS QUANTILES LOG SECRET|- SAMPLES THREADS INPUTS OUTPUTS MODEL: each thread serves, predicts and logs so many
// samples, and more until the model of this number is online, while the main thread takes up new models. One line a sample:
// "key model token|- number-in-thread bits-of-outputs"
int serve(char **given) {
    evokit_source *source = evokit_source_open(given[0], given[1]);
    if (!source) return failed();
    evokit_tokens *tokens = std::strcmp(given[3], "-") ? evokit_tokens_load(given[3], 3600) : nullptr;
    if (std::strcmp(given[3], "-") && !tokens) return failed();
    long samples = std::strtol(given[4], nullptr, 10), threads = std::strtol(given[5], nullptr, 10);
    size_t inputs = std::strtoul(given[6], nullptr, 10), outputs = std::strtoul(given[7], nullptr, 10);
    uint32_t until = static_cast<uint32_t>(std::strtoul(given[8], nullptr, 10));
    std::vector<std::string> said(static_cast<size_t>(threads));
    std::vector<std::thread> running;
    std::atomic<long> busy{threads}, bad{0};
    for (long t = 0; t < threads; t++)
        running.emplace_back([&, t] {
            evokit_sampler *sampler = evokit_sampler_new(source);
            evokit_log *log = evokit_log_open(given[2], tokens, 1000);
            std::vector<float> x(inputs), y(outputs);
            char token[EVOKIT_TOKEN_SIZE] = "-", line[256];
            for (long i = 0; sampler && log && (i < samples || evokit_model_iter_id(source) < until); i++) {
                evokit_info info;
                for (size_t k = 0; k < inputs; k++) x[k] = static_cast<float>(static_cast<long>(k) + i % 7 - 3) / 4.0f;
                float reward = static_cast<float>(i % 100) / 4.0f;
                if (evokit_add_noise(sampler, &info) || evokit_predict(sampler, x.data(), inputs, y.data(), outputs) ||
                    evokit_log_sampled(log, &info, token) ||
                    (tokens ? evokit_log_reward_token(log, token, reward) : evokit_log_reward(log, &info, reward))) {
                    std::fprintf(stderr, "%s\n", evokit_error());
                    bad++;
                    break;
                }
                std::string &out = said[static_cast<size_t>(t)];
                std::snprintf(line, sizeof line, "%llu %u %s %ld", static_cast<unsigned long long>(info.key),
                              info.model_iter_id, token, i);
                out += line;
                for (float value : y) std::snprintf(line, sizeof line, " %08x", bits_of(value)), out += line;
                out += '\n';
            }
            if (!sampler || !log) bad++;
            if (log && evokit_log_close(log)) bad++;
            evokit_sampler_free(sampler);
            busy--;
        });
    long reloads = 0;
    while (busy > 0) {
        int found = evokit_refresh(source);
        if (found < 0 || (tokens && evokit_tokens_refresh(tokens) < 0)) std::fprintf(stderr, "%s\n", evokit_error());
        reloads += found > 0;
    }
    for (std::thread &each : running) each.join();
    for (const std::string &text : said) std::fputs(text.c_str(), stdout);
    std::fprintf(stderr, "reloads %ld\n", reloads);
    evokit_source_close(source);
    evokit_tokens_close(tokens);
    return bad ? 1 : 0;
}

// parameters MODELS QUANTILES, keys on standard input: a sum over the bits of the perturbed parameters each
int parameters(char **given) {
    evokit_source *source = evokit_source_open(given[0], given[1]);
    if (!source) return failed();
    evokit_sampler *sampler = evokit_sampler_new(source);
    evokit_info info = {0, 0, evokit_model_iter_id(source), 0};
    while (std::cin >> info.key) {
        if (evokit_apply_noise(sampler, &info)) return failed();
        size_t count;
        const float *values = evokit_parameters(sampler, &count);
        uint32_t sum = 0;
        for (size_t i = 0; i < count; i++) sum = sum * 31 + bits_of(values[i]);
        std::printf("%u\n", sum);
    }
    evokit_sampler_free(sampler);
    evokit_source_close(source);
    return 0;
}

// values MODELS QUANTILES, keys on standard input: the perturbed parameters of each, as their bytes
int values(char **given) {
    evokit_source *source = evokit_source_open(given[0], given[1]);
    if (!source) return failed();
    evokit_sampler *sampler = evokit_sampler_new(source);
    evokit_info info = {0, 0, evokit_model_iter_id(source), 0};
    evokit_source_close(source); // the sampler goes on
    while (std::cin >> info.key) {
        if (evokit_apply_noise(sampler, &info)) return failed();
        size_t count;
        const float *values = evokit_parameters(sampler, &count);
        std::fwrite(values, sizeof(float), count, stdout);
    }
    evokit_sampler_free(sampler);
    return 0;
}

// feedback LOG SECRET, lines "token reward": the result of each
int feedback(char **given) {
    evokit_tokens *tokens = evokit_tokens_load(given[1], 3600);
    if (!tokens) return failed();
    evokit_log *log = evokit_log_open(given[0], tokens, 0);
    if (!log) return failed();
    std::string token;
    for (std::string reward; std::cin >> token >> reward; std::fflush(stdout))
        std::printf("%d\n", evokit_log_reward_token(log, token.c_str(), std::strtof(reward.c_str(), nullptr)));
    int result = evokit_log_close(log) ? failed() : 0;
    evokit_tokens_close(tokens);
    return result;
}

// forked LOG SECRET: two refused tokens, of which one is not written yet, then a child that closes the log as well
int forked(char **given) {
    evokit_tokens *tokens = evokit_tokens_load(given[1], 3600);
    evokit_log *log = tokens ? evokit_log_open(given[0], tokens, 0) : nullptr;
    if (!log) return failed();
    for (int i = 0; i < 2; i++) evokit_log_reward_token(log, "none", 1.0f);
    const pid_t child = fork();
    if (child > 0) waitpid(child, nullptr, 0);
    return evokit_log_close(log) ? failed() : 0;
}

// forked-reader SECRET TOKEN of an unknown secret: the status of a child that redeems it while a thread of its parent is
// reading the file of the secrets
int forked_reader(char **given) {
    const std::string secret = given[0], aside = secret + ".aside";
    evokit_tokens *tokens = evokit_tokens_load(given[0], 3600);
    if (!tokens || std::rename(secret.c_str(), aside.c_str()) || mkfifo(secret.c_str(), 0600)) return failed();
    auto redeem = [&] {
        evokit_info info;
        return evokit_token_redeem(tokens, given[1], &info);
    };
    std::thread reader(redeem);
    const int end = open(secret.c_str(), O_WRONLY); // returns once the thread has the other end
    if (std::rename(aside.c_str(), secret.c_str())) return failed();
    const pid_t child = fork();
    if (!child) {
        alarm(10);
        _exit(redeem());
    }
    int status;
    waitpid(child, &status, 0);
    std::printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    close(end);
    reader.join();
    evokit_tokens_close(tokens);
    return 0;
}

// bare LOG, lines "key identity model fingerprint" on standard input: the result of a reward for each
int bare(char **given) {
    evokit_log *log = evokit_log_open(given[0], nullptr, 0);
    if (!log) return failed();
    evokit_info info;
    while (std::cin >> info.key >> info.identity >> info.model_iter_id >> info.fingerprint)
        std::printf("%d\n", evokit_log_reward(log, &info, 1.0f));
    return evokit_log_close(log) ? failed() : 0;
}

// removed LOG: the results of rewards, before the second of which the log's directory is removed
int removed(char **given) {
    evokit_log *log = evokit_log_open(given[0], nullptr, 2);
    if (!log) return failed();
    evokit_info info{};
    info.key = 42, info.model_iter_id = 3, info.fingerprint = 9;
    std::printf("%d\n", evokit_log_reward(log, &info, 1.0f));
    std::filesystem::remove_all(given[0]);
    int result = evokit_log_reward(log, &info, 2.0f);
    std::printf("%d %s\n", result, evokit_error());
    std::printf("%d\n", evokit_log_reward(log, &info, 3.0f));
    return evokit_log_close(log) ? failed() : 0;
}

// speed MODELS QUANTILES INPUTS OUTPUTS: nanoseconds a parameter perturbed without a table, predictions a second
int speed(char **given) {
    evokit_noise *made = evokit_noise_open(given[1], 18, 0);
    evokit_source *source = evokit_source_open(given[0], given[1]);
    if (!made || !source) return failed();
    std::vector<float> theta(100000), out(100000);
    double least = 1e9;
    for (int i = 0; i < 200; i++) {
        double start = now();
        evokit_perturb(made, static_cast<uint64_t>(2 * i + 2), 0, theta.size(), 0.1f, theta.data(), out.data());
        least = std::min(least, now() - start);
    }
    std::printf("%.2f ns a parameter\n", least / 1e5 * 1e9);
    size_t inputs = std::strtoul(given[2], nullptr, 10), outputs = std::strtoul(given[3], nullptr, 10);
    evokit_sampler *sampler = evokit_sampler_new(source);
    std::vector<float> x(inputs, 0.5f), y(outputs);
    evokit_info info;
    for (bool fresh : {false, true}) {
        double best = 1e9;
        for (int turn = 0; turn < 20; turn++) {
            double start = now();
            for (int i = 0; i < 10000; i++) {
                if (fresh && evokit_add_noise(sampler, &info)) return failed();
                if (evokit_predict(sampler, x.data(), inputs, y.data(), outputs)) return failed();
            }
            best = std::min(best, now() - start);
        }
        std::printf("%.0f %s\n", 1e4 / best, fresh ? "predictions with new noise each" : "predictions");
    }
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    std::setlocale(LC_ALL, ""); // as services do
    struct Command {
        const char *name;
        int arguments;
        int (*run)(char **);
    };
    const Command commands[] = {{"noise", 7, noise},   {"record", 4, record},         {"issue", 3, issue},
                                {"redeem", 2, redeem}, {"serve", 9, serve},           {"parameters", 2, parameters},
                                {"speed", 4, speed},   {"feedback", 2, feedback},     {"values", 2, values},
                                {"bare", 1, bare},     {"rotated", 1, rotated},       {"forked", 2, forked},
                                {"forked-reader", 2, forked_reader}, {"full", 3, full},
                                {"removed", 1, removed}};
    for (const Command &command : commands)
        if (argc == command.arguments + 2 && !std::strcmp(argv[1], command.name)) return command.run(argv + 2);
    std::fprintf(stderr, "usage: see cpp_client_program.cpp\n");
    return 2;
}
