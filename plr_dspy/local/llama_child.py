"""The local server's child process, run by path.

It reads the settings from a line of JSON on stdin, and replies with a line of JSON. It exits when stdin closes, so
that it never outlives its parent.
"""

import json
import os
import sys


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["sys_path"]
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = ""  # No page in a local browser may read answers.
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_metrics = True
    params.n_parallel = settings["parallel"]
    params.n_ctx = settings["context_length"] * settings["parallel"]
    params.cache_prompt = True
    params.cache_ram_mib = 0  # The slots keep the prefixes; another cache would grow to gigabytes.
    params.cpuparams.n_threads = settings["num_threads"]
    params.cpuparams_batch.n_threads = settings["num_threads"]
    params.verbosity = 1
    try:
        server = xllamacpp.Server(params)
        reply = {"address": server.listening_address}
    except RuntimeError as error:
        reply = {"error": str(error)}
    print(json.dumps(reply), flush=True)
    os.dup2(2, 1)
    sys.stdin.read()
    # The server's destructor would wait for running calls, which nobody needs any more.
    os._exit(0)


if __name__ == "__main__":
    main()
