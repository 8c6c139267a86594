#!/usr/bin/env python3
"""Parses every file of deploy/ as the tool that takes it would, follows its references, and asks the
program whether it knows the options that the file uses.

Usage: deploy_test.py PROGRAM [unittest arguments]
"""
import functools
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
TIMEOUT_S = 120


def run(*args):
    return subprocess.run(args, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@functools.cache
def help_of(command):
    done = run(PROGRAM, command, "--help")
    if done.returncode != 0:
        raise AssertionError(f"millrace {command}: {done.stderr}")
    return done.stdout


@functools.cache
def offered(command):
    """Whether the program has the command, and of `serve` the form that leads a cluster."""
    there = re.search(rf"(?m)^  {command} ", run(PROGRAM, "--help").stdout) is not None
    there = there and (command != "serve" or "--cluster" in help_of(command))
    if not there:
        print(f"millrace {command} for clusters is not in this program; its options are not checked")
    return there


def knows(command, option):
    name = rf"(?m)^ +(-\w, )?{re.escape(option)}(?![\w-])|--\[no-\]{option[2:]}(?![\w-])"
    return not offered(command) or re.search(name, help_of(command)) is not None


def args_of(container):
    return dict(a[2:].split("=", 1) for a in container["args"] if "=" in a)


class WithChecks(unittest.TestCase):
    def check_command(self, words, where):
        """`words` begins with the command: serve, worker, token, certs."""
        command, options = words[0], [w.split("=")[0] for w in words[1:] if w.startswith("--")]
        self.assertTrue(options, f"{where}: {command} without options is not what it means")
        for option in options:
            self.assertTrue(knows(command, option), f"{where}: millrace {command} has no {option}")


# ---- systemd

UNITS = ("millrace-controller.service", "millrace-worker@.service")
HARDENING = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
             "PrivateTmp": "yes", "CapabilityBoundingSet": "", "RestrictNamespaces": "yes",
             "SystemCallFilter": "@system-service", "UMask": "0077"}


def read_unit(path):
    sections, section = {}, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith(("#", ";")):
            continue
        head = re.fullmatch(r"\[(\w+)\]", line)
        if head:
            section = sections.setdefault(head.group(1), {})
            continue
        key, equals, value = line.partition("=")
        if not equals or section is None or not re.fullmatch(r"[A-Za-z]+", key):
            raise AssertionError(f"{path.name}:{number}: neither a section nor KEY=VALUE: {line}")
        section.setdefault(key, []).append(value)
    return sections


class Systemd(WithChecks):
    def test_units_say_what_a_service_needs(self):
        for name in UNITS:
            service = read_unit(DEPLOY / "systemd" / name)["Service"]
            self.assertEqual(service["Restart"], ["always"], name)
            self.assertEqual(service["KillSignal"], ["SIGTERM"])
            self.assertIn("User", service)
            for key, value in HARDENING.items():
                self.assertEqual(service.get(key), [value], f"{name}: {key}")
            words = shlex.split(service["ExecStart"][0])
            self.assertEqual(words[0], "/usr/local/bin/millrace")
            self.check_command(words[1:], name)
            credentials = {c.split(":")[0] for c in service["LoadCredential"]}
            self.assertEqual(credentials, {"token", "ca.crt", "tls.crt", "tls.key"})
            if "--shutdown-timeout" in words:
                drain_s = int(words[words.index("--shutdown-timeout") + 1])
                self.assertGreater(int(service["TimeoutStopSec"][0]), drain_s,
                                   "killed while it still drains")

    def test_the_unit_for_one_machine_is_as_hardened(self):
        service = read_unit(DEPLOY / "systemd" / "millrace.service")["Service"]
        controller = read_unit(DEPLOY / "systemd" / UNITS[0])["Service"]
        own = {"EnvironmentFile", "LoadCredential", "ExecStart"}
        self.assertEqual({k: v for k, v in service.items() if k not in own},
                         {k: v for k, v in controller.items() if k not in own})
        words = shlex.split(service["ExecStart"][0])
        self.check_command(words[1:], "millrace.service")
        for word in words:
            if word.startswith("%d/"):
                self.assertIn(f"{word[3:]}:/etc/millrace/{word[3:]}", service["LoadCredential"])
        self.assertEqual(service["EnvironmentFile"], ["/etc/millrace/millrace.env"])
        for line in (DEPLOY / "systemd" / "millrace.env").read_text().splitlines():
            if line.startswith("MILLRACE_") and not line.startswith("MILLRACE_MODEL="):
                option = "--" + line.partition("=")[0][9:].lower().replace("_", "-")
                self.assertTrue(knows("serve", option), line)

    def test_the_admin_socket_has_a_folder_that_commands_can_reach(self):
        service = read_unit(DEPLOY / "systemd" / UNITS[0])["Service"]
        self.assertIn("XDG_RUNTIME_DIR=/run", service["Environment"])
        self.assertEqual((service["RuntimeDirectory"], service["RuntimeDirectoryMode"]),
                         (["millrace"], ["0700"]))
        self.assertIn("AF_UNIX", service["RestrictAddressFamilies"][0])

    def test_environment_files_name_options(self):
        for name in UNITS:
            service = read_unit(DEPLOY / "systemd" / name)["Service"]
            command = shlex.split(service["ExecStart"][0])[1]
            path = DEPLOY / "systemd" / pathlib.Path(service["EnvironmentFile"][0]).name
            for line in path.read_text().splitlines():
                if not line or line.startswith("#"):
                    continue
                if line.startswith("MILLRACE_GRACE="):
                    self.assertEqual(line.split("=")[1], f"{service['TimeoutStopSec'][0]}s")
                variable = re.fullmatch(r"MILLRACE_([A-Z_]+)=\S+", line)
                self.assertIsNotNone(variable, f"{path.name}: {line}")
                option = variable.group(1).lower().replace("_", "-")
                if option == "model" and offered(command):
                    self.assertRegex(help_of(command), r"Usage: millrace \w+ MODEL")
                elif option != "model":
                    self.assertTrue(knows(command, "--" + option), f"{path.name}: --{option}")

    def test_systemd_takes_them(self):
        if shutil.which("systemd-analyze") is None:
            print("systemd-analyze is not here; the parser above is all")
            return
        with tempfile.TemporaryDirectory() as folder:
            for name in UNITS:
                text = (DEPLOY / "systemd" / name).read_text()
                # The program is not installed here, and of a template an instance is verified.
                unit = pathlib.Path(folder, name.replace("@", "@0"))
                unit.write_text(text.replace("/usr/local/bin/millrace", PROGRAM))
                done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
                           str(unit))
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)


# ---- Kubernetes


def manifests():
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    out = []
    for name in listed["resources"]:
        out += [d for d in yaml.safe_load_all((folder / name).read_text()) if d]
    return listed, out


class Kubernetes(WithChecks):
    @classmethod
    def setUpClass(cls):
        cls.kustomization, cls.objects = manifests()
        cls.sets = {o["metadata"]["name"]: o for o in cls.objects if o["kind"] == "StatefulSet"}

    def named(self, kind):
        return {o["metadata"]["name"]: o for o in self.objects if o["kind"] == kind}

    def pods_of(self, selector):
        """The sets whose pods a map of labels selects."""
        found = []
        for each in self.sets.values():
            labels = each["spec"]["template"]["metadata"]["labels"]
            if selector.items() <= labels.items():
                found.append(each)
        return found

    @staticmethod
    def container(each):
        containers = each["spec"]["template"]["spec"]["containers"]
        assert len(containers) == 1
        return containers[0]

    def test_a_worker_is_restarted_only_if_it_is_stuck(self):
        container = self.container(self.sets["millrace-worker"])
        paths = {p: container[p]["httpGet"]["path"]
                 for p in ("startupProbe", "livenessProbe", "readinessProbe")}
        self.assertEqual(paths, {"startupProbe": "/live", "livenessProbe": "/live",
                                 "readinessProbe": "/health"})

    def ports(self, each):
        return {p["name"]: p["containerPort"] for p in self.container(each)["ports"]}

    def test_every_file_is_listed_and_every_object_named_once(self):
        files = {p.name for p in (DEPLOY / "kubernetes").glob("*.yaml")}
        self.assertEqual(files, {"kustomization.yaml", *self.kustomization["resources"]})
        names = [(o["kind"], o["metadata"]["name"]) for o in self.objects]
        self.assertEqual(len(names), len(set(names)))
        for each in self.objects:
            self.assertIn("apiVersion", each)
        kinds = {kind for kind, _ in names}
        self.assertLessEqual({"Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"},
                             kinds)

    def test_selectors_find_pods(self):
        for each in self.sets.values():
            labels = each["spec"]["template"]["metadata"]["labels"]
            self.assertLessEqual(each["spec"]["selector"]["matchLabels"].items(), labels.items())
        selectors = [(o["metadata"]["name"], o["spec"]["selector"])
                     for o in self.objects if o["kind"] == "Service"]
        for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
            selectors += [(o["metadata"]["name"], o["spec"][key]["matchLabels"])
                          for o in self.objects if o["kind"] == kind]
        for policy in self.named("NetworkPolicy").values():
            for rule in policy["spec"]["ingress"]:
                selectors += [(policy["metadata"]["name"], f["podSelector"]["matchLabels"])
                              for f in rule.get("from", [])]
        for name, selector in selectors:
            self.assertEqual(len(self.pods_of(selector)), 1, f"{name}: {selector}")

    def test_ports_exist(self):
        for service in self.named("Service").values():
            (target,) = self.pods_of(service["spec"]["selector"])
            for port in service["spec"]["ports"]:
                self.assertIn(port["targetPort"], self.ports(target), service["metadata"]["name"])
        for policy in self.named("NetworkPolicy").values():
            (target,) = self.pods_of(policy["spec"]["podSelector"]["matchLabels"])
            named = {p["port"] for r in policy["spec"]["ingress"] for p in r["ports"]}
            self.assertEqual(named, set(self.ports(target)), "each port is let in, and no other")
        for each in self.sets.values():
            container = self.container(each)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                how = container[probe].get("httpGet") or container[probe]["tcpSocket"]
                self.assertIn(how["port"], self.ports(each), f"{container['name']}: {probe}")

    def test_the_controller_is_asked_by_its_own_routes(self):
        container = self.container(self.sets["millrace-controller"])
        paths = {p: container[p]["httpGet"]["path"]
                 for p in ("startupProbe", "livenessProbe", "readinessProbe")}
        self.assertEqual(paths, {"startupProbe": "/health", "livenessProbe": "/health",
                                 "readinessProbe": "/ready"})

    def test_the_admin_socket_has_a_folder_that_can_be_written(self):
        controller = self.sets["millrace-controller"]
        container = self.container(controller)
        environment = {e["name"]: e["value"] for e in container["env"]}
        mount = next(m for m in container["volumeMounts"]
                     if m["mountPath"] == environment["XDG_RUNTIME_DIR"])
        self.assertFalse(mount.get("readOnly"))
        volume = next(v for v in controller["spec"]["template"]["spec"]["volumes"]
                      if v["name"] == mount["name"])
        self.assertIn("emptyDir", volume)

    def test_volumes_secrets_and_claims_exist(self):
        secrets = {s["name"]: {f.split("=")[0] for f in s["files"]}
                   for s in self.kustomization["secretGenerator"]}
        claims = self.named("PersistentVolumeClaim")
        for each in self.sets.values():
            spec = each["spec"]["template"]["spec"]
            volumes = {v["name"]: v for v in spec.get("volumes", [])}
            templates = {c["metadata"]["name"] for c in each["spec"].get("volumeClaimTemplates", [])}
            mounts = {m["name"]: m["mountPath"] for m in self.container(each)["volumeMounts"]}
            self.assertEqual(set(mounts), set(volumes) | templates)
            used = set()
            for volume in volumes.values():
                if "secret" in volume:
                    used.add(volume["secret"]["secretName"])
                elif "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
            wanted = {"millrace-token", volumes["tls"]["secret"]["secretName"]}
            if args_of(self.container(each)).get("host") == "0.0.0.0":
                wanted.add("millrace-api-key")  # other pods reach it
            self.assertEqual(used & set(secrets), wanted)
            args = args_of(self.container(each))
            self.assertEqual(args["token"], mounts["token"] + "/token")
            self.assertEqual(args["tls-dir"], mounts["tls"])
            self.assertEqual(secrets[volumes["tls"]["secret"]["secretName"]],
                             {"ca.crt", "tls.crt", "tls.key"})

    def test_options_exist_and_agree_with_the_ports(self):
        for each in self.sets.values():
            args = self.container(each)["args"]
            self.check_command(args, each["metadata"]["name"])
            for arg in args:
                key, _, value = arg.partition("=")
                port = {"--port": "http", "--listen": "steps" if args[0] == "worker" else "control",
                        "--data-port": "data"}.get(key)
                if port:
                    self.assertEqual(int(value.rsplit(":", 1)[-1]), self.ports(each)[port], arg)
        join = next(a for a in self.container(self.sets["millrace-worker"])["args"]
                    if a.startswith("--join="))
        host, _, port = join.split("=")[1].partition(":")
        controller = self.sets["millrace-controller"]
        self.assertEqual(host, f"{controller['metadata']['name']}-0.{controller['spec']['serviceName']}")
        self.assertEqual(int(port), self.ports(controller)["control"])

    def test_pods_stop_gently_and_have_no_rights(self):
        for each in self.sets.values():
            self.assertIn(each["spec"]["serviceName"], self.named("Service"))
            spec = each["spec"]["template"]["spec"]
            container = self.container(each)
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertFalse(spec["automountServiceAccountToken"])
            own = container["securityContext"]
            self.assertFalse(own["allowPrivilegeEscalation"])
            self.assertTrue(own["readOnlyRootFilesystem"])
            self.assertEqual(own["capabilities"], {"drop": ["ALL"]})
            drain = [int(a.split("=")[1]) for a in container["args"]
                     if a.startswith(("--shutdown-timeout=", "--drain-delay="))]
            pause = int(container.get("lifecycle", {}).get("preStop", {}).get(
                "exec", {}).get("command", ["", "0"])[1])
            self.assertGreater(spec["terminationGracePeriodSeconds"], sum(drain) + pause)
            for variable in container.get("env", []):
                if variable["name"] == "MILLRACE_GRACE":
                    self.assertEqual(variable["value"],
                                     f"{spec['terminationGracePeriodSeconds']}s")


class KubernetesModels(unittest.TestCase):
    def test_a_job_fills_the_claim_that_pods_read(self):
        job = yaml.safe_load((DEPLOY / "kubernetes-models" / "fill.yaml").read_text())
        claims = {o["metadata"]["name"]: o for o in manifests()[1]
                  if o["kind"] == "PersistentVolumeClaim"}
        spec = job["spec"]["template"]["spec"]
        claim = next(v["persistentVolumeClaim"] for v in spec["volumes"] if "emptyDir" not in v)
        self.assertFalse(claim.get("readOnly"))
        self.assertEqual(claims[claim["claimName"]]["spec"]["accessModes"], ["ReadWriteMany"])
        self.assertEqual(job["metadata"]["namespace"], "millrace")


class KubernetesFleet(unittest.TestCase):
    """What goes beside deploy/kubernetes when a fleet, or KEDA, scales its workers."""

    @classmethod
    def setUpClass(cls):
        folder = DEPLOY / "kubernetes-fleet"
        cls.objects = {o["kind"]: o for path in folder.glob("*.yaml")
                       for o in yaml.safe_load_all(path.read_text())}
        cls.sets = [o["metadata"]["name"] for o in manifests()[1] if o["kind"] == "StatefulSet"]

    def test_the_role_is_for_the_scale_of_the_workers_and_nothing_else(self):
        (rule,) = self.objects["Role"]["rules"]
        self.assertEqual((rule["resources"], rule["verbs"]), (["statefulsets/scale"], ["get", "patch"]))
        self.assertLessEqual(set(rule["resourceNames"]), set(self.sets))
        binding = self.objects["RoleBinding"]
        self.assertEqual(binding["roleRef"]["name"], self.objects["Role"]["metadata"]["name"])
        self.assertEqual(binding["subjects"][0]["name"],
                         self.objects["ServiceAccount"]["metadata"]["name"])

    def test_keda_follows_the_gauge_of_a_kind_that_the_page_names(self):
        scaled = self.objects["ScaledObject"]["spec"]
        self.assertIn(scaled["scaleTargetRef"]["name"], self.sets)
        query = scaled["triggers"][0]["metadata"]["query"]
        kind = re.search(r'millrace_wanted_workers\{kind="([\w-]+)"\}', query).group(1)
        page = (ROOT / "docs" / "fleet.md").read_text()
        self.assertIn(f"{{name: {kind}, provider: none", page)
        self.assertIn("`millrace_wanted_workers{kind}`", (ROOT / "docs/http-api.md").read_text())


# ---- Slurm and the container


class Slurm(WithChecks):
    path = DEPLOY / "slurm" / "millrace.sbatch"

    def test_bash_takes_it(self):
        done = run("bash", "-n", str(self.path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        head = self.path.read_text().split("set -euo")[0]
        for line in re.findall(r"(?m)^#SBATCH (.*)$", head):
            self.assertRegex(line, r"^--[a-z-]+(=\S+)?$")

    def test_options_exist(self):
        text = self.path.read_text().replace("\\\n", " ")
        commands = re.findall(r'"\$millrace" ((?:serve|worker|token|certs) [^\n&]*)', text)
        self.assertEqual(sorted(c.split()[0] for c in commands),
                         ["certs", "serve", "token", "token", "worker"])
        for command in commands:
            self.check_command(shlex.split(command), "millrace.sbatch")

    def test_it_runs_through_with_stand_ins(self):
        """With stand-ins for srun, scontrol and millrace: who is started with what, and stopped."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            tools = {
                "scontrol": "printf 'n1\\nn2\\n'",
                "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
                "millrace": 'echo "$@" >> "$LOG"; case $1 in\n'
                            'token) echo x > "$3";;\n'
                            'serve) sleep 0.3;;\n'
                            'worker) trap "echo worker stopped >> $LOG; exit 0" TERM\n'
                            '  while :; do sleep 0.01; done;;\nesac',
            }
            for tool, body in tools.items():
                path = folder / tool
                path.write_text(f"#!/bin/bash\n{body}\n")
                path.chmod(0o755)
            log = folder / "log"
            done = subprocess.run(
                ["bash", str(self.path)], cwd=folder, capture_output=True, text=True,
                timeout=TIMEOUT_S, check=False,
                env={"PATH": f"{folder}:/usr/bin:/bin", "MODEL": "/m", "LOG": str(log),
                     "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})
            self.assertEqual(done.returncode, 0, done.stderr)
            said = log.read_text()
            self.assertRegex(said, r"(?m)^certs .* --host n1 n2$")
            self.assertRegex(said, r"(?m)^serve /m .*--listen 0\.0\.0\.0:7000 ")
            for node in ("n1", "n2"):
                self.assertRegex(said, rf"(?m)^worker /m --join n1:7000 .*--name {node} ")
            self.assertEqual(said.count("worker stopped"), 2)


class Container(WithChecks):
    path = DEPLOY / "container" / "Containerfile"
    KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}

    def instructions(self):
        text = re.sub(r"(?m)^#.*\n", "", self.path.read_text()).replace("\\\n", " ")
        return [line.split(None, 1) for line in text.splitlines() if line.strip()]

    def test_it_is_two_stages_of_debian_12_without_root(self):
        steps = self.instructions()
        for word, *_ in steps:
            self.assertIn(word, self.KNOWN)
        bases = [rest.split()[0] for word, rest in steps if word == "FROM"]
        self.assertEqual(len(bases), 2)
        for base in bases:
            self.assertRegex(base, r"/debian:12(-slim)?$")
        last = {word: rest for word, rest in steps}
        self.assertRegex(last["USER"], r"^[1-9]\d*:[1-9]\d*$")
        user = next(s for w, s in steps if w == "RUN" and "useradd" in s)
        self.assertIn(f"--uid {last['USER'].split(':')[0]}", user)
        self.assertEqual(last["ENTRYPOINT"], '["/usr/local/bin/millrace"]')

    def test_what_is_copied_and_run_exists(self):
        for word, rest in self.instructions():
            if word != "COPY" or rest.startswith("--from="):
                continue
            for source in rest.split()[:-1]:
                self.assertTrue((ROOT / source).exists(), source)
        text = self.path.read_text()
        self.assertIn("scripts/build release millrace", text)
        self.assertTrue((ROOT / "scripts/build").exists())

    def test_its_packages_hold_what_the_program_loads(self):
        if shutil.which("dpkg") is None or shutil.which("readelf") is None:
            print("no dpkg or readelf here; the packages are not looked at")
            return
        text = self.path.read_text().split("debian:12-slim", 1)[1]
        listed = set(re.findall(r"[a-z][a-z0-9.+-]+", text)) | {"libc6", "libgcc-s1"}
        loaded = re.findall(r"(\S+) => (/\S+)", run("ldd", PROGRAM).stdout)
        direct = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", PROGRAM).stdout)
        self.assertTrue(direct)
        for name, path in loaded:
            if name not in direct:
                continue
            real = str(pathlib.Path(path).resolve())
            owners = run("dpkg", "-S", real, real.removeprefix("/usr")).stdout
            packages = set(re.findall(r"(?m)^([^:,\s]+)", owners))
            if not packages:
                continue  # built by hand on this machine
            self.assertTrue(packages & listed, f"{name} is of {packages}, which is not installed")


class Readme(unittest.TestCase):
    def test_it_names_every_folder(self):
        text = (DEPLOY / "README.md").read_text()
        for folder in DEPLOY.iterdir():
            if folder.is_dir():
                self.assertIn(f"`{folder.name}/`", text)


if __name__ == "__main__":
    unittest.main()
