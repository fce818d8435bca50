"""The state of a run on disk: everything that training needs to go on as if it had never stopped. No pickle.

    <run>/checkpoints/
        000000020000/            one complete checkpoint; the name is the step
            manifest.json        format, version, step, what the other files have to be
            agent.safetensors    models, targets, optimizers, counters (`parl_core.agent_file`)
            state.json           everything else that is numbers and texts
            arrays.npz           everything else that is arrays; state.json says where they belong
        replay/                  the replay memory, in pieces that several checkpoints share (`journal`)
            000000000000-000000010000.npz

A checkpoint is written into a folder with a temporary name, forced to disk, and renamed; a piece of replay memory is
never changed once it has its name. So whatever ends the program, and whenever, what has the name of a checkpoint is
whole. `tree` turns states into JSON and arrays, `store` writes and finds checkpoints, `random_state` has the generators
that nobody owns. When which parts are saved is decided in `parl_core.training.checkpoints`.
"""
