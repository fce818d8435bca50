/* A service in C that takes part in evolution: noise specification v1 and the records of samples.

   Copy this file into your program and leave main() out with -DEVOKIT_NO_MAIN. Needs the shipped quantiles_v1.i2.
   As a program, for tests:

     cc -O2 -o evokit_client evokit_client.c
     ./evokit_client noise QUANTILES SEED TABLE KEY START COUNT STD   one line a coordinate: unit, bits of (c+1)/64 + noise
     ./evokit_client record KEY MODEL_ITER_ID FINGERPRINT REWARD     the record and its frame in a log, in hexadecimal  */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t seed;
    int16_t upper[32768]; /* the shipped quantiles */
    uint64_t table_size;  /* 0: without a table */
    uint64_t block;       /* coordinates that share a window */
    int16_t *table;
} evokit_noise;

static void philox4x64_10(uint64_t counter, uint64_t k0, uint64_t k1, uint64_t c[4]) {
    c[0] = counter, c[1] = c[2] = c[3] = 0;
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B97F4A7C15u, k1 += 0xBB67AE8584CAA73Bu) {
        unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93u * c[0];
        unsigned __int128 b = (unsigned __int128)0xCA5A826395121157u * c[2];
        uint64_t c0 = (uint64_t)(b >> 64) ^ c[1] ^ k0, c2 = (uint64_t)(a >> 64) ^ c[3] ^ k1;
        c[0] = c0, c[1] = (uint64_t)b, c[2] = c2, c[3] = (uint64_t)a;
    }
}

static uint64_t splitmix64(uint64_t key, uint64_t n) {
    uint64_t z = key + (n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int computed_unit(const evokit_noise *noise, uint64_t stream, uint64_t c) {
    uint64_t words[4];
    philox4x64_10(c / 16 + 1, noise->seed, stream, words);
    unsigned bits = words[c % 16 / 4] >> (16 * (c % 4)) & 0xFFFF;
    return bits >= 32768 ? noise->upper[bits - 32768] : -noise->upper[32767 - bits];
}

/* 0, or -1 if the quantiles cannot be read or there is no memory. table_size 0 stands for cached: false. */
int evokit_open(evokit_noise *noise, const char *quantiles, uint64_t seed, uint64_t table_size) {
    unsigned char raw[65536];
    FILE *file = fopen(quantiles, "rb");
    if (!file) return -1;
    size_t got = fread(raw, 1, sizeof raw, file);
    fclose(file);
    if (got != sizeof raw) return -1;
    for (int i = 0; i < 32768; i++) noise->upper[i] = (int16_t)(raw[2 * i] | raw[2 * i + 1] << 8);
    noise->seed = seed, noise->table_size = table_size, noise->table = NULL;
    if (!table_size) return 0;
    for (noise->block = 65536; noise->block > table_size / 4;) noise->block /= 2;
    if (!(noise->table = malloc(table_size * sizeof(int16_t)))) return -1;
    for (uint64_t i = 0; i < table_size; i++) noise->table[i] = (int16_t)computed_unit(noise, 0, i);
    return 0;
}

/* The noise of coordinate c, in 1/4096 of the standard deviation. */
int evokit_unit(const evokit_noise *noise, uint64_t key, uint64_t c) {
    uint64_t pair = key >> 1;
    if (!key) return 0; /* control traffic */
    int unit = noise->table_size ? noise->table[splitmix64(pair, c / noise->block) %
                                                    (noise->table_size - noise->block + 1) + c % noise->block]
                                 : computed_unit(noise, pair, c);
    return key & 1 ? -unit : unit;
}

/* One perturbed parameter; `volatile` keeps compilers from fusing the product and the sum, which would round once. */
float evokit_perturbed(const evokit_noise *noise, uint64_t key, uint64_t c, float theta, float std) {
    volatile float product = (float)evokit_unit(noise, key, c) * (std / 4096.0f);
    return theta + product;
}

static size_t put_varint(uint8_t *out, uint64_t number) {
    size_t n = 0;
    for (; number > 127; number >>= 7) out[n++] = (uint8_t)(number | 128);
    out[n++] = (uint8_t)number;
    return n;
}

static size_t put_fixed32(uint8_t *out, uint32_t number) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(number >> 8 * i);
    return 4;
}

/* A Record message: SamplingInfo and reward. `out` has room for 64 bytes; returns how many were written. */
size_t evokit_record(uint8_t *out, uint64_t key, uint32_t model_iter_id, uint32_t fingerprint, float reward) {
    uint8_t info[40];
    size_t n = 0, m = 0;
    info[n++] = 0x08, n += put_varint(info + n, key >> 31);
    info[n++] = 0x08, n += put_varint(info + n, key & 0x7FFFFFFF);
    info[n++] = 0x10, n += put_varint(info + n, model_iter_id);
    if (fingerprint) info[n++] = 0x1D, n += put_fixed32(info + n, fingerprint);
    uint32_t bits;
    memcpy(&bits, &reward, 4);
    out[m++] = 0x0A, out[m++] = (uint8_t)n, memcpy(out + m, info, n), m += n;
    out[m++] = 0x15, m += put_fixed32(out + m, bits);
    return m;
}

/* The frame of a payload in a log: E5 4B, length, CRC-32 of length and payload, payload. Returns its size. */
size_t evokit_frame(uint8_t *out, const uint8_t *payload, uint16_t length) {
    uint32_t crc = 0xFFFFFFFF;
    out[0] = 0xE5, out[1] = 0x4B, out[2] = (uint8_t)length, out[3] = (uint8_t)(length >> 8);
    memcpy(out + 8, payload, length);
    for (int i = 2; i < 8 + length; i = i == 3 ? 8 : i + 1) {
        crc ^= out[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    put_fixed32(out + 4, ~crc);
    return 8 + (size_t)length;
}

#ifndef EVOKIT_NO_MAIN
int main(int argc, char **argv) {
    static evokit_noise noise;
    if (argc == 9 && !strcmp(argv[1], "noise")) {
        if (evokit_open(&noise, argv[2], strtoull(argv[3], 0, 10), strtoull(argv[4], 0, 10)))
            return fprintf(stderr, "%s cannot be read\n", argv[2]), 1;
        uint64_t key = strtoull(argv[5], 0, 10), start = strtoull(argv[6], 0, 10), count = strtoull(argv[7], 0, 10);
        for (uint64_t c = start; c < start + count; c++) {
            float value = evokit_perturbed(&noise, key, c, (float)((double)(c + 1) / 64), strtof(argv[8], 0));
            uint32_t bits;
            memcpy(&bits, &value, 4);
            printf("%d %08x\n", evokit_unit(&noise, key, c), bits);
        }
        free(noise.table);
        return 0;
    }
    if (argc == 6 && !strcmp(argv[1], "record")) {
        uint8_t record[64], frame[72];
        size_t n = evokit_record(record, strtoull(argv[2], 0, 10), (uint32_t)strtoul(argv[3], 0, 10),
                                 (uint32_t)strtoul(argv[4], 0, 10), strtof(argv[5], 0));
        size_t m = evokit_frame(frame, record, (uint16_t)n);
        for (size_t i = 0; i < n; i++) printf("%02x", record[i]);
        for (size_t i = 0; i < m; i++) printf("%s%02x", i ? "" : "\n", frame[i]);
        return printf("\n"), 0;
    }
    return fprintf(stderr, "usage: see the head of evokit_client.c\n"), 2;
}
#endif
