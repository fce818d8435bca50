#!/usr/bin/env bash
# The loop of the PARL 1.x manual: sample online, update offline, push the new model; each step is a process of its own.
set -euo pipefail
rounds=${1:-200}

python make_model.py ./model_warehouse/model_dir_0
#------------------------init solver------------------------
evokit init_solver \
  --model_dir="./model_warehouse/model_dir_0" \
  --config_path="config.prototxt"

for ((epoch = 0; epoch < rounds; ++epoch)); do
  #------------------------online sampling------------------------
  evokit online_sampling \
    --log_path="./sampling_log" \
    --model_dir="./model_warehouse/model_dir_$epoch" \
    --config_path="./config.prototxt"
  #------------------------offline update------------------------
  next_epoch=$((epoch + 1))
  evokit offline_update \
    --log_path='./sampling_log' \
    --model_dir="./model_warehouse/model_dir_$epoch" \
    --updated_model_dir="./model_warehouse/model_dir_${next_epoch}" \
    --config_path="./config.prototxt"
done
