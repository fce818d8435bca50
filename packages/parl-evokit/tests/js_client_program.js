// What the tests run of evokit_client.js, its path being the first argument. See test_reference_clients.py.
"use strict";

const fs = require("fs");
const [, , path, command, ...given] = process.argv;
const evokit = require(path);

function bytes(name) {
  const data = fs.readFileSync(name);
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
}

const hexadecimal = (values) =>
  Array.from(new Uint32Array(values.buffer, values.byteOffset, values.length), (bits) => bits.toString(16).padStart(8, "0"));

if (command === "noise" && given.length === 7) {
  // QUANTILES SEED TABLE KEY START COUNT STD: one line a coordinate: unit, bits of (c + 1) / 64 + noise
  const noise = new evokit.Noise(bytes(given[0]), BigInt(given[1]), Number(given[2]));
  const [key, start, count] = [BigInt(given[3]), Number(given[4]), Number(given[5])];
  const units = noise.units(key, start, count);
  const theta = Float32Array.from(units, (_, i) => (start + i + 1) / 64);
  const perturbed = hexadecimal(noise.perturbed(theta, key, Number(given[6]), start));
  process.stdout.write(Array.from(units, (unit, i) => `${unit} ${perturbed[i]}\n`).join(""));
} else if (command === "sample" && given.length === 3) {
  // DIRECTORY QUANTILES predict|parameters|values: for each token on standard input the parameters' sum of bits and the
  // outputs of predict, or the bits of all parameters, or the error
  const solver = JSON.parse(fs.readFileSync(`${given[0]}/solver.json`, "utf8"));
  const model = new evokit.Model({
    quantiles: bytes(given[1]),
    parameters: bytes(`${given[0]}/params.npz`),
    solver,
    state: given[2] === "stateless" ? undefined : bytes(`${given[0]}/solver.npz`),
  });
  const lines = fs.readFileSync(0, "utf8").split("\n").filter(Boolean).map((token) => {
    try {
      const sample = model.sample(token);
      const sum = new Uint32Array(sample.flat.buffer).reduce((total, bits) => (Math.imul(total, 31) + bits) >>> 0, 0);
      if (given[2] === "values") return hexadecimal(sample.flat).join(" ");
      const outputs = given[2] === "predict" ? hexadecimal(sample.predict([0.5, -0.25, 0.125, 1.0])) : [];
      return [sum, ...outputs].join(" ");
    } catch (error) {
      return `error ${error.message}`;
    }
  });
  process.stdout.write(`${lines.join("\n")}\n`);
} else {
  process.stderr.write("usage: see js_client_program.js\n");
  process.exitCode = 2;
}
