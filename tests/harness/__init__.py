"""What all scripts share that start processes: tests, benchmarks and measured experiments. Only Python's
standard library is needed. A script adds the folder `tests` to sys.path and imports what it needs:

    processes   a `millrace` command with a log, one that serves, commands that end by themselves
    http        requests, server-sent events, /metrics
    prometheus  the text format of /metrics, read strictly or not
    waiting     until something is so, with a limit
    ports       a free one, and links that can be held up
    cases       what the script was given, a folder for each test
    cluster     a controller that workers join by hand
    proc        what /proc says of processes
    fakes       HTTP servers that tests imitate others with, and certificates
    namespaces  machines made of network namespaces
"""
