// A service in JavaScript that takes part in evolution: noise specification v1 and the records of samples.
//
// const { Noise, record, frame } = require("./evokit_client.js");    needs the shipped quantiles_v1.i2
//
// As a program, for tests:
//   node evokit_client.js noise QUANTILES SEED TABLE KEY START COUNT STD   one line a coordinate: unit, bits of (c+1)/64 + noise
//   node evokit_client.js record KEY MODEL_ITER_ID FINGERPRINT REWARD     the record and its frame in a log, in hexadecimal
"use strict";

const U64 = (x) => BigInt.asUintN(64, x);

function philox4x64_10(counter, k0, k1) {
  let c = [counter, 0n, 0n, 0n];
  for (let round = 0; round < 10; round++) {
    const a = 0xd2e7470ee14c6c93n * c[0], b = 0xca5a826395121157n * c[2];
    c = [(b >> 64n) ^ c[1] ^ k0, U64(b), (a >> 64n) ^ c[3] ^ k1, U64(a)];
    k0 = U64(k0 + 0x9e3779b97f4a7c15n);
    k1 = U64(k1 + 0xbb67ae8584caa73bn);
  }
  return c;
}

function splitmix64(key, n) {
  let z = U64(key + (n + 1n) * 0x9e3779b97f4a7c15n);
  z = U64((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = U64((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}

class Noise {
  // quantiles: the shipped file, a Buffer; seed: a BigInt; tableSize: 0 stands for cached: false.
  constructor(quantiles, seed, tableSize) {
    this.upper = Int16Array.from({ length: 32768 }, (_, i) => quantiles.readInt16LE(2 * i));
    this.seed = seed;
    this.block = 65536;
    while (tableSize && this.block > Math.floor(tableSize / 4)) this.block /= 2;
    this.table = tableSize ? Int16Array.from(this.computedUnits(0n, 0, tableSize)) : null;
  }

  // Noise without a table: stream `stream`, coordinates `start` to `start + count - 1`.
  *computedUnits(stream, start, count) {
    for (let c = start, words; c < start + count; c++) {
      if (c === start || c % 16 === 0) words = philox4x64_10(BigInt(Math.floor(c / 16) + 1), this.seed, stream);
      const bits = Number((words[Math.floor((c % 16) / 4)] >> BigInt(16 * (c % 4))) & 0xffffn);
      yield bits >= 32768 ? this.upper[bits - 32768] : -this.upper[32767 - bits];
    }
  }

  *tableUnits(pair, start, count) {
    for (let c = start, window; c < start + count; c++) {
      if (c === start || c % this.block === 0) {
        const windows = BigInt(this.table.length - this.block + 1);
        window = Number(splitmix64(pair, BigInt(Math.floor(c / this.block))) % windows);
      }
      yield this.table[window + (c % this.block)];
    }
  }

  // The noise of a key (a BigInt), in 1/4096 of the standard deviation.
  units(key, start, count) {
    if (key === 0n) return new Int16Array(count); // control traffic
    const pair = key >> 1n;
    const units = Int16Array.from((this.table ? this.tableUnits(pair, start, count) : this.computedUnits(pair, start, count)));
    return key & 1n ? units.map((unit) => -unit) : units;
  }

  // parameters: a Float32Array, whose first has the coordinate `start`.
  perturbed(parameters, key, std, start = 0) {
    const scale = Math.fround(Math.fround(std) / 4096);
    const units = this.units(key, start, parameters.length);
    return parameters.map((theta, i) => theta + Math.fround(units[i] * scale));
  }
}

function varint(number) {
  const bytes = [];
  for (number = BigInt(number); number > 127n; number >>= 7n) bytes.push(Number(number & 127n) | 128);
  return [...bytes, Number(number)];
}

const littleEndian = (write) => {
  const four = Buffer.alloc(4);
  write(four);
  return [...four];
};
const fixed32 = (number) => littleEndian((four) => four.writeUInt32LE(number));
const float32 = (number) => littleEndian((four) => four.writeFloatLE(number));

// A Record message: SamplingInfo and reward.
function record(key, modelIterId, fingerprint, reward) {
  const info = [0x08, ...varint(key >> 31n), 0x08, ...varint(key & 0x7fffffffn), 0x10, ...varint(modelIterId)];
  if (fingerprint) info.push(0x1d, ...fixed32(fingerprint));
  return Buffer.from([0x0a, info.length, ...info, 0x15, ...float32(reward)]);
}

// The frame of a payload in a log: E5 4B, length, CRC-32 of length and payload, payload.
function frame(payload) {
  const length = [payload.length & 255, payload.length >> 8];
  let crc = 0xffffffff;
  for (const byte of [...length, ...payload]) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return Buffer.from([0xe5, 0x4b, ...length, ...fixed32(~crc >>> 0), ...payload]);
}

module.exports = { Noise, record, frame };

function main([command, ...given]) {
  if (command === "noise" && given.length === 7) {
    const noise = new Noise(require("fs").readFileSync(given[0]), BigInt(given[1]), Number(given[2]));
    const [key, start, count] = [BigInt(given[3]), Number(given[4]), Number(given[5])];
    const units = noise.units(key, start, count);
    const perturbed = noise.perturbed(Float32Array.from(units, (_, i) => (start + i + 1) / 64), key, Number(given[6]), start);
    const bits = new Uint32Array(perturbed.buffer);
    process.stdout.write(Array.from(units, (unit, i) => `${unit} ${bits[i].toString(16).padStart(8, "0")}\n`).join(""));
  } else if (command === "record" && given.length === 4) {
    const message = record(BigInt(given[0]), Number(given[1]), Number(given[2]), Number(given[3]));
    process.stdout.write(`${message.toString("hex")}\n${frame(message).toString("hex")}\n`);
  } else {
    process.stderr.write("usage: see the head of evokit_client.js\n");
    process.exitCode = 2;
  }
}

if (require.main === module) main(process.argv.slice(2));
