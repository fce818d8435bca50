//! A reader and a writer of segments, written from the page of the log alone (docs/reference/evokit/log.md):
//! evl write FILE FINGERPRINT COUNT  |  evl read FILE
use std::io::Write;

const SYNC: [u8; 2] = [0xE5, 0x4B];

fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = !0u32;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        crc ^= *byte as u32;
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 127 {
        out.push(number as u8 | 128);
        number >>= 7;
    }
    out.push(number as u8);
}

fn field(out: &mut Vec<u8>, number: u64, value: u64) {
    varint(out, number << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, number: u64, value: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn fixed32(out: &mut Vec<u8>, number: u64, value: u32) {
    varint(out, number << 3 | 5);
    out.extend(value.to_le_bytes());
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_le_bytes();
    let crc = crc32(&[&length, payload]);
    [&SYNC[..], &length, &crc.to_le_bytes(), payload].concat()
}

fn record(key: u64, model: u64, reward: Option<f32>, time_us: u64) -> Vec<u8> {
    let (mut info, mut out) = (Vec::new(), Vec::new());
    field(&mut info, 1, key >> 31);
    field(&mut info, 1, key & 0x7FFF_FFFF);
    field(&mut info, 2, model);
    bytes(&mut out, 1, &info);
    if let Some(value) = reward {
        fixed32(&mut out, 2, value.to_bits());
    }
    field(&mut out, 3, time_us);
    out
}

/// One field of a message: its number, a number for varints and fixed ones, and bytes.
fn fields(data: &[u8]) -> Option<Vec<(u64, u64, &[u8])>> {
    let (mut place, mut found) = (0, Vec::new());
    let number = |place: &mut usize| -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = *data.get(*place)?;
            *place += 1;
            value |= ((byte & 127) as u64).checked_shl(shift)?;
            if byte < 128 {
                return Some(value);
            }
            shift += 7;
        }
    };
    while place < data.len() {
        let tag = number(&mut place)?;
        let (value, size) = match tag & 7 {
            0 => (number(&mut place)?, 0),
            1 => (0, 8),
            2 => (0, number(&mut place)? as usize),
            5 => (0, 4),
            _ => return None,
        };
        let content = data.get(place..place + size)?;
        let fixed = content.iter().take(8).rev().fold(0u64, |all, byte| all << 8 | *byte as u64);
        found.push((tag >> 3, if tag & 7 == 0 { value } else { fixed }, content));
        place += size;
    }
    Some(found)
}

fn read(data: &[u8]) {
    let (mut place, mut skipped, mut print) = (0, 0, 0);
    while place + 8 <= data.len() {
        let length = u16::from_le_bytes([data[place + 2], data[place + 3]]) as usize;
        let stop = place + 8 + length;
        let crc = u32::from_le_bytes(data[place + 4..place + 8].try_into().unwrap());
        let holds = data[place..place + 2] == SYNC
            && stop <= data.len()
            && crc == crc32(&[&data[place + 2..place + 4], &data[place + 8..stop]]);
        if !holds {
            place += 1;
            skipped += 1;
            continue;
        }
        let payload = &data[place + 8..stop];
        place = stop;
        let header = payload.first() == Some(&8);
        let (mut key, mut halves, mut model, mut own, mut reward, mut time) = (0, 0, 0, 0, None, 0);
        for (number, value, content) in fields(payload).expect("a message") {
            match (header, number) {
                (true, 3) => print = value,
                (false, 1) => {
                    for (inner, value, _) in fields(content).expect("a message") {
                        match inner {
                            1 => (key, halves) = (key << 31 | value, halves + 1),
                            2 => model = value,
                            3 => own = value,
                            _ => (),
                        }
                    }
                }
                (false, 2) => reward = Some(f32::from_bits(value as u32)),
                (false, 3) => time = value,
                _ => (),
            }
        }
        if !header {
            let shown = reward.map_or("-".to_string(), |value| value.to_string());
            let whose = if own == 0 { print } else { own };
            println!("{} {} {} {} {} {}", if halves == 2 { key } else { 0 }, model, whose, shown, time, skipped);
        }
    }
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    if given[1] == "read" {
        return read(&std::fs::read(&given[2]).unwrap());
    }
    let (fingerprint, count) = (given[3].parse().unwrap(), given[4].parse::<u64>().unwrap());
    let mut head = Vec::new();
    field(&mut head, 1, 1);
    bytes(&mut head, 2, b"00112233445566778899aabbccddee01");
    fixed32(&mut head, 3, fingerprint);
    let mut out = std::fs::File::create(&given[2]).unwrap();
    out.write_all(&[frame(&head), frame(&head)].concat()).unwrap();
    for n in 0..count {
        let key = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 2 | 2;
        out.write_all(&frame(&record(key, 0, None, 1_000 + n))).unwrap();
        if n % 3 != 0 {
            out.write_all(&frame(&record(key, 0, Some(n as f32 / 4.0), 2_000 + n))).unwrap();
        }
    }
}
