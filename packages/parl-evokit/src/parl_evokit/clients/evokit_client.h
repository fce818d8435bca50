/* Serving an evolving model from C or C++: the published model, keys, noise, predictions, the log, tokens.

   Add evokit_client.cpp to your program (C++17, gcc or clang, Linux or macOS, no library) and include this header, from C as well.

     evokit_source  the newest model of a model directory or a warehouse; evokit_refresh() takes up a newer one at any time
     evokit_sampler a perturbed copy of it, one a thread; it takes the newest model at each evokit_add_noise()
     evokit_log     appends samples and rewards to a log that parl-evokit reads; may be shared among threads
     evokit_tokens  issues and redeems the form in which a sample leaves the house; may be shared among threads;
                    evokit_tokens_refresh() takes up rotated secrets at any time

   Functions that can fail return NULL or a number below 0; evokit_error() then says why, in the words of this thread's
   last failure. What the bytes mean: docs/reference/evokit of the repository (noise.md, log.md, tokens.md).

   A service:

     evokit_source *source = evokit_source_open("model_warehouse", "quantiles_v1.i2");
     evokit_tokens *tokens = evokit_tokens_load("secret", 86400);
     evokit_log *log = evokit_log_open("log", tokens, 100);

     // in each thread
     evokit_sampler *sampler = evokit_sampler_new(source);
     evokit_info info;
     char token[EVOKIT_TOKEN_SIZE];
     evokit_add_noise(sampler, &info);
     evokit_predict(sampler, x, 4, y, 2);
     evokit_log_sampled(log, &info, token);          // the token goes to the page
     ...
     evokit_log_reward_token(log, token, 1.0f);      // when it comes back, in any process that has the secret  */
#ifndef EVOKIT_CLIENT_H
#define EVOKIT_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct evokit_noise evokit_noise;
typedef struct evokit_source evokit_source;
typedef struct evokit_sampler evokit_sampler;
typedef struct evokit_log evokit_log;
typedef struct evokit_tokens evokit_tokens;

/* A sample: which noise a model had. Key 0 is control and holdout traffic, which has no noise; the identity's upper bits
   tell which (from 2^60 on the present model, from 2^61 on the trusted one). */
typedef struct {
    uint64_t key;
    uint64_t identity; /* of a sample without noise, which its key does not tell from others; else 0 */
    uint32_t model_iter_id;
    uint32_t fingerprint;
} evokit_info;

/* Why this thread's last call failed. */
const char *evokit_error(void);

/* --- noise -------------------------------------------------------------------------------------------------------- */

/* Noise of a seed; `table` entries shared by all samples, or 0 for none. `quantiles`: path of the shipped quantiles_v1.i2. */
evokit_noise *evokit_noise_open(const char *quantiles, uint64_t seed, uint64_t table);
void evokit_noise_close(evokit_noise *noise);
/* The noise of `count` coordinates from `start` on, in 1/4096 of the standard deviation. */
void evokit_units(const evokit_noise *noise, uint64_t key, uint64_t start, size_t count, int16_t *out);
/* out[i] = theta[i] + noise of coordinate start + i; `out` may be `theta`. */
void evokit_perturb(const evokit_noise *noise, uint64_t key, uint64_t start, size_t count, float std, const float *theta,
                    float *out);

/* --- the published model -------------------------------------------------------------------------------------------- */

/* A model directory (params.npz, solver.json, solver.npz) of any algorithm, or a warehouse of them. */
evokit_source *evokit_source_open(const char *path, const char *quantiles);
/* Samplers may be used on after that; they keep the last model. */
void evokit_source_close(evokit_source *source);
/* Take up a newer model, from any thread: 1 there was one, 0 there was none, -1 it cannot be read and the last one stays. */
int evokit_refresh(evokit_source *source);
uint32_t evokit_model_iter_id(const evokit_source *source);
size_t evokit_parameter_count(const evokit_source *source);

/* --- sampling ------------------------------------------------------------------------------------------------------- */

evokit_sampler *evokit_sampler_new(evokit_source *source);
void evokit_sampler_free(evokit_sampler *sampler);
/* Perturb the newest model with noise of a new key; or serve it as it is, where the control share says so, or the trusted
   model, where the holdout share does; model_iter_id is that of the newest one in both cases. */
int evokit_add_noise(evokit_sampler *sampler, evokit_info *info);
/* Take the parameters of the sample `info`; -1 if that is a sample of another model. */
int evokit_apply_noise(evokit_sampler *sampler, const evokit_info *info);
/* All perturbed parameters, or those of one name, and how many; valid until the next perturbation. */
const float *evokit_parameters(const evokit_sampler *sampler, size_t *count);
const float *evokit_parameter(const evokit_sampler *sampler, const char *name, size_t *count);
/* The output of a perceptron (`mlp(...)`, its arrays w0, b0, w1, ...) for x: `outputs` must be its number of outputs. */
int evokit_predict(const evokit_sampler *sampler, const float *x, size_t inputs, float *y, size_t outputs);
/* y = activation(x . weights + bias), weights [inputs, outputs] row by row; bias may be NULL. y is another array than x. */
enum { EVOKIT_LINEAR = 0, EVOKIT_TANH = 1, EVOKIT_RELU = 2, EVOKIT_SOFTMAX = 3 };
void evokit_dense(const float *weights, const float *bias, size_t inputs, size_t outputs, const float *x, int activation,
                  float *y);

/* --- tokens --------------------------------------------------------------------------------------------------------- */

enum { EVOKIT_TOKEN_SIZE = 57 }; /* 56 characters and the 0 after them */
enum {
    EVOKIT_MALFORMED = 1,
    EVOKIT_UNKNOWN_SECRET = 2,
    EVOKIT_FORGED = 3,
    EVOKIT_EXPIRED = 4,
    EVOKIT_BAD_REWARD = 5
};

/* Secrets of a file of mode 0600; NULL: of the file in EVOKIT_SECRET_FILE, else those in EVOKIT_SECRET. */
evokit_tokens *evokit_tokens_load(const char *path, double lifetime_s);
/* Take up secrets that were rotated, from any thread: 1 the file has changed, 0 it has not, -1 it cannot be read and the
   secrets stay. Redeeming does so by itself where a token names a secret that is not known. */
int evokit_tokens_refresh(evokit_tokens *tokens);
void evokit_tokens_close(evokit_tokens *tokens);
/* The token of a sample that is served now; a sample without noise and identity gets the identity of neither arm. */
int evokit_token_issue(const evokit_tokens *tokens, evokit_info *info, char token[EVOKIT_TOKEN_SIZE]);
/* 0 and the sample, or the reason (1 to 4) for which the token is refused. */
int evokit_token_redeem(evokit_tokens *tokens, const char *token, evokit_info *info);
/* The same at another time than now, in seconds since 1970. */
int evokit_token_issue_at(const evokit_tokens *tokens, double now, evokit_info *info, char token[EVOKIT_TOKEN_SIZE]);
int evokit_token_redeem_at(evokit_tokens *tokens, double now, const char *token, evokit_info *info);

/* --- log ------------------------------------------------------------------------------------------------------------ */

/* A log's directory; `tokens` may be NULL. After `fsync_every` records the system is asked to write to disk; 0: never. */
evokit_log *evokit_log_open(const char *directory, evokit_tokens *tokens, unsigned fsync_every);
int evokit_log_close(evokit_log *log);
/* When a segment ends: beyond a size, and after a time. As they are made: 64 MiB and a day. */
void evokit_log_rotate(evokit_log *log, uint64_t max_bytes, double max_seconds);
/* Note that a sample was served. `token` may be NULL where the log has no tokens. Where a segment was removed while it was
   open, the call that asks the system to write to disk fails, and the next one begins a new segment. */
int evokit_log_sampled(evokit_log *log, evokit_info *info, char token[EVOKIT_TOKEN_SIZE]);
/* Note a sample's reward; only for a log without tokens. */
int evokit_log_reward(evokit_log *log, const evokit_info *info, float reward);
/* Note the reward of a token: 0, the reason (1 to 5) for which it is refused, which is counted in the log, or -1. */
int evokit_log_reward_token(evokit_log *log, const char *token, float reward);

/* The bytes of a record and of its frame, for programs with a transport of their own: how many were written, at most 96. */
size_t evokit_record(uint8_t *out, const evokit_info *info, const float *reward, uint64_t time_us, int token);
size_t evokit_frame(uint8_t *out, const uint8_t *payload, uint16_t length);

#ifdef __cplusplus
}
#endif
#endif
