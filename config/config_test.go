package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write makes files in a new directory and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// problemsOf loads text as an agent's file and returns the error without the
// directory.
func problemsOf(t *testing.T, text string) string {
	t.Helper()
	dir := write(t, map[string]string{"berth.hcl": text, "cert.pem": "", "key.pem": "", "ca.pem": ""})
	_, err := Load(filepath.Join(dir, "berth.hcl"))
	if err == nil {
		return ""
	}
	var ce *Error
	if !errors.As(err, &ce) {
		t.Fatalf("not an *Error: %v", err)
	}
	return strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "")
}

const minimal = `
name     = "s1"
data_dir = "data"
server { enabled = true }
`

func TestMistakes(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown option", "bind_adr = \"127.0.0.1\"\n",
			`berth.hcl:1: unknown option "bind_adr"; did you mean "bind_addr"?`},
		{"unknown option far from all", "colour = \"blue\"\n",
			`berth.hcl:1: unknown option "colour"`},
		{"unknown option in a block", "server {\n  raft {\n    trailing_log = 5\n  }\n}\n",
			`berth.hcl:3: unknown option "server.raft.trailing_log"; did you mean "trailing_logs"?`},
		{"unknown block", "servers {\n}\n",
			`berth.hcl:1: unknown block "servers"; did you mean "server"?`},
		{"block as option", "\nserver = true\n",
			`berth.hcl:2: "server" is a block; write server { ... } without the equals sign`},
		{"option as block", "worker {\n  labels { a = \"b\" }\n}\n",
			`berth.hcl:2: "worker.labels" is not a block; write labels = ...`},
		{"label on a block", "server \"one\" {\n}\n",
			`berth.hcl:1: block "server" has no label; write server { ... }`},
		{"block twice", "ports {\n}\nports {\n}\n",
			`berth.hcl:3: block "ports" is already at line 1 of this file`},
		{"option twice", "name = \"a\"\nname = \"b\"\n",
			`berth.hcl:2: attribute redefined: the argument "name" was already set at berth.hcl:1,1-5. Each argument may be set only once`},
		{"no quotes", "log_level = debug\n",
			`berth.hcl:1: the value of "log_level" needs quotes; write log_level = "debug"`},
		{"wrong type", "ports {\n  http = \"many\"\n}\n",
			`berth.hcl:2: the value of "ports.http" must be a whole number, and is a string`},
		{"half a number", "ports {\n  http = 1.5\n}\n",
			`berth.hcl:2: the value of "ports.http" must be a whole number, and is a number`},
		{"wrong types, and what else there is", "join = \"10.0.0.1\"\nname = [\"a\"]\nserver {\n  enabled = 3\n  raft {\n    trailing_log = 5\n  }\n}\nworker {\n  labels = true\n}\n",
			`berth.hcl:1: the value of "join" must be a list, ["...", "..."], and is a string` + "\n" +
				`berth.hcl:2: the value of "name" must be a text in quotes, and is a tuple` + "\n" +
				`berth.hcl:4: the value of "server.enabled" must be true or false, and is a number` + "\n" +
				`berth.hcl:6: unknown option "server.raft.trailing_log"; did you mean "trailing_logs"?` + "\n" +
				`berth.hcl:10: the value of "worker.labels" must be pairs, { name = "..." }, and is a bool`},
		{"variables", "data_dir = \"${env.HOME}/x\"\nname = upper(\"a\")\n",
			`berth.hcl:1: the value of "data_dir" must be written out: there are no variables and functions` + "\n" +
				`berth.hcl:2: the value of "name" must be written out: there are no variables and functions`},
		{"broken block", "server {\n  enabled = true\n",
			`berth.hcl:1: unclosed configuration block: there is no closing brace for this block before the end of the file. This may be caused by incorrect brace nesting elsewhere in this file`},
		{"not HCL", "{\"name\": \"s1\"}\n",
			`berth.hcl:1: argument or block definition required: an argument or block definition is required here`},
		{"nothing enabled", "data_dir = \"x\"\n",
			`the agent would do nothing; set enabled = true in a server or a worker block`},
		{"no data directory", "name = \"s1\"\nserver { enabled = true }\n",
			`berth.hcl: data_dir: it has no default; write, for example, data_dir = "/var/lib/berth"`},
		{"log level", minimal + "advertise_addr = \"10.0.0.1\"\nlog_level = \"verbose\"\n",
			`berth.hcl:6: log_level: "verbose" is not known; it can be "trace", "debug", "info", "warn" or "error"`},
		{"nearly a log level", minimal + "log_level = \"warning\"\n",
			`berth.hcl:5: log_level: "warning" is not known; it can be "trace", "debug", "info", "warn" or "error"`},
		{"name", "name = \"Rack 1\"\ndata_dir = \"d\"\nserver { enabled = true }\n",
			`berth.hcl:1: name: "Rack 1" cannot name a node: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`},
		{"advertise everything", minimal + "advertise_addr = \"0.0.0.0\"\n",
			`berth.hcl:5: advertise_addr: others cannot reach "0.0.0.0"; write the address of this machine that they can`},
		{"ports collide", minimal + "ports {\n  rpc = 7640\n}\n",
			`berth.hcl:6: ports.rpc: 7640 is the port of ports.http already`},
		{"the default port of another", "name = \"s1\"\ndata_dir = \"d\"\nserver { enabled = true }\nports {\n  http = 7641\n}\n",
			`berth.hcl:5: ports.rpc: 7641, its default, is what ports.http is set to; set it as well`},
		{"less than nothing", "name = \"s1\"\ndata_dir = \"d\"\njoin = [\"a\"]\nworker {\n  enabled = true\n  capacity { cpu = \"-1\" }\n}\n",
			`berth.hcl:6: worker.capacity.cpu: "-1" is less than nothing`},
		{"port too large", minimal + "ports {\n  gossip = 70000\n}\n",
			`berth.hcl:6: ports.gossip: 70000 is not a port; it can be 0 (any free one) to 65535`},
		{"bad duration", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  raft {\n    snapshot_interval = \"soon\"\n  }\n}\n",
			`berth.hcl:6: server.raft.snapshot_interval: "soon" is not a duration; write, for example, "500ms", "10s" or "2m"`},
		{"election before heartbeat", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  raft {\n    election_timeout = \"600ms\"\n  }\n}\n",
			`berth.hcl:6: server.raft.election_timeout: "600ms" is shorter than heartbeat_timeout, "1s"`},
		{"half a second of backoff", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  scheduler {\n    pod_initial_backoff = \"500ms\"\n  }\n}\n",
			`berth.hcl:6: server.scheduler.pod_initial_backoff: "500ms" is not a whole number of seconds`},
		{"queue", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  scheduler {\n    queue = \"prio\"\n  }\n}\n",
			`berth.hcl:6: server.scheduler.queue: "prio" is not known; it can be "priority" or "fifo"`},
		{"rules of before the first", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  max_log_version = -1\n}\n",
			`berth.hcl:5: server.max_log_version: -1 is too small; it must be at least 0`},
		{"a small state", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  max_state = \"255Mi\"\n}\n",
			`berth.hcl:5: server.max_state: "255Mi" is too small; it must be at least "256Mi", or "0"`},
		{"a state of less than nothing", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  max_state = \"-1\"\n}\n",
			`berth.hcl:5: server.max_state: "-1" is less than nothing`},
		{"a large state", "name = \"s1\"\ndata_dir = \"d\"\nserver {\n  enabled = true\n  max_state = \"2Gi\"\n}\n", ""},
		{"join", minimal + "join = [\"10.0.0.1:gossip\"]\n",
			`berth.hcl:5: join: "10.0.0.1:gossip" has a bad port`},
		{"nothing to join", "name = \"w1\"\ndata_dir = \"d\"\nworker {\n  enabled = true\n}\n",
			`berth.hcl:4: worker.enabled: the worker knows no member of a cluster; set join`},
		{"runtime", minimal + "worker {\n  enabled = true\n  runtime = \"proces\"\n}\n",
			`berth.hcl:7: worker.runtime: "proces" is not known; did you mean "process"?`},
		{"endpoint", minimal + "worker {\n  enabled = true\n  cri {\n    endpoint = \"/run/x.sock\"\n  }\n}\n",
			`berth.hcl:8: worker.cri.endpoint: "/run/x.sock" is not a socket; write "unix:///PATH"`},
		{"a policy for images", minimal + "worker {\n  enabled = true\n  cri {\n    image_pull_credentials_verification_policy = \"AlwaysVerifi\"\n  }\n}\n",
			`berth.hcl:8: worker.cri.image_pull_credentials_verification_policy: "AlwaysVerifi" is not known; did you mean "AlwaysVerify"?`},
		{"a list for another policy", minimal + "worker {\n  enabled = true\n  cri {\n    preloaded_images_verification_allowlist = [\"a\"]\n  }\n}\n",
			`berth.hcl:8: worker.cri.preloaded_images_verification_allowlist: it is only for the policy "NeverVerifyAllowlistedImages"`},
		{"taint without effect", minimal + "worker {\n  enabled = true\n  taints = [\"dedicated=gpu\"]\n}\n",
			`berth.hcl:7: worker.taints: "dedicated=gpu" has no effect; a taint is written "key=value:Effect" or "key:Effect"`},
		{"taint with a near effect", minimal + "worker {\n  enabled = true\n  taints = [\"a:NoSchedul\"]\n}\n",
			`berth.hcl:7: worker.taints: "a:NoSchedul" has the unknown effect "NoSchedul"; did you mean "NoSchedule"?`},
		{"amount", minimal + "worker {\n  enabled = true\n  capacity {\n    memory = \"8 GB\"\n  }\n}\n",
			`berth.hcl:8: worker.capacity.memory: "8 GB" is not an amount; write, for example, "500m", "4" or "10Gi"`},
		{"reserved above capacity", minimal + "worker {\n  enabled = true\n  capacity {\n    cpu = \"2\"\n  }\n  reserved {\n    cpu = \"3\"\n  }\n}\n",
			`berth.hcl:11: worker.reserved.cpu: "3" is more than the capacity, "2"`},
		{"a signal that there is not", minimal + "worker {\n  enabled = true\n  eviction {\n    hard = { \"memory.availabl\" = \"1Gi\" }\n  }\n}\n",
			`berth.hcl:8: worker.eviction.hard: "memory.availabl" is not known; did you mean "memory.available"?`},
		{"a threshold that is none", minimal + "worker {\n  enabled = true\n  eviction {\n    hard = { \"memory.available\" = \"110%\" }\n  }\n}\n",
			`berth.hcl:8: worker.eviction.hard: memory.available: "110%" is not a percentage; write, for example, "10%"`},
		{"soft without a grace", minimal + "worker {\n  enabled = true\n  eviction {\n    soft = { \"nodefs.available\" = \"15%\" }\n  }\n}\n",
			`berth.hcl:8: worker.eviction.soft: nodefs.available: soft_grace does not say for how long`},
		{"a grace for nothing", minimal + "worker {\n  enabled = true\n  eviction {\n    soft_grace = { \"nodefs.available\" = \"1m\" }\n  }\n}\n",
			`berth.hcl:8: worker.eviction.soft_grace: nodefs.available: soft has no threshold for it`},
		{"two mistakes", "bind_adr = \"127.0.0.1\"\nlog_jsn = true\n",
			"berth.hcl:1: unknown option \"bind_adr\"; did you mean \"bind_addr\"?\nberth.hcl:2: unknown option \"log_jsn\"; did you mean \"log_json\"?"},
		{"gossip key", minimal + "gossip {\n  encryption_key = \"secret\"\n}\n",
			"berth.hcl:6: gossip.encryption_key: it is not base64 of 16, 24 or 32 bytes; make one with `berth operator gossip-key`"},
		{"TLS in part", minimal + "tls {\n  cert_file = \"cert.pem\"\n  key_file = \"key.pem\"\n}\n",
			`berth.hcl:5: tls: tls.ca_file is missing; TLS needs ca_file, cert_file and key_file together`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := problemsOf(t, tt.text)
			if got != tt.want {
				t.Errorf("want %s\n got %s", tt.want, got)
			}
		})
	}
}

func TestReach(t *testing.T) {
	const (
		open   = minimal + "bind_addr = \"0.0.0.0\"\n"
		key    = "gossip {\n  encryption_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n}\n"
		tls    = "tls {\n  ca_file = \"ca.pem\"\n  cert_file = \"cert.pem\"\n  key_file = \"key.pem\"\n}\n"
		prefix = "berth.hcl:5: bind_addr: other machines can reach 0.0.0.0, and "
	)
	tests := []struct{ name, text, want string }{
		{"loopback", minimal, ""},
		{"other loopback", minimal + "bind_addr = \"127.0.0.9\"\n", ""},
		{"open", open, ""}, // the agent makes itself a CA and a gossip key
		{"open with key", open + key, ""},
		{"open with TLS", open + tls, prefix + "gossip is not encrypted; set gossip.encryption_key (`berth operator gossip-key`), or insecure = true"},
		{"open with both", open + key + tls, ""},
		{"open and insecure", open + tls + "insecure = true\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := problemsOf(t, tt.text); got != tt.want {
				t.Errorf("want %s\n got %s", tt.want, got)
			}
		})
	}
}

func TestDirectoryIsMergedInNameOrder(t *testing.T) {
	dir := write(t, map[string]string{
		"10-base.hcl":  "name = \"s1\"\ndata_dir = \"data\"\nserver {\n  enabled = true\n  bootstrap_expect = 3\n  raft {\n    trailing_logs = 5\n  }\n}\n",
		"20-local.hcl": "name = \"s2\"\nserver {\n  raft {\n    snapshot_threshold = 7\n  }\n}\n",
		"notes.txt":    "not HCL {",
		".hidden.hcl":  "not HCL {",
	})
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "s2" || c.Server.BootstrapExpect != 3 || c.Server.Raft.TrailingLogs != 5 || c.Server.Raft.SnapshotThreshold != 7 {
		t.Errorf("merged wrongly: %+v %+v", c.Server, c.Server.Raft)
	}
	if want := filepath.Join(dir, "data"); string(c.DataDir) != want {
		t.Errorf("data_dir is %s, want %s, beside its file", c.DataDir, want)
	}
	if !c.Server.Autopilot.CleanupDeadServers || c.Server.Raft.HeartbeatTimeout.Value() != time.Second {
		t.Error("a default was lost in the merge")
	}
}

func TestNothingToLoad(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		dir:                            dir + ": the directory has no file whose name ends in .hcl",
		filepath.Join(dir, "none.hcl"): filepath.Join(dir, "none.hcl") + ": there is no such file or directory",
	} {
		if _, err := Load(path); err == nil || err.Error() != want {
			t.Errorf("want %s\n got %v", want, err)
		}
	}
}

// Absence and zero differ for what defaults to something.
func TestZeroIsKept(t *testing.T) {
	dir := write(t, map[string]string{"a.hcl": minimal + `
join = ["10.0.0.1"]
ports { http = 0 }
`, "b.hcl": "server {\n  bootstrap_expect = 0\n  autopilot { cleanup_dead_servers = false }\n  scheduler {\n    pod_max_backoff = \"0s\"\n    event_limit = 0\n    system_class_groups = []\n    preemption { enabled = false }\n  }\n}\n"})
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	sc := c.Server.Scheduler
	if c.Ports.HTTP != 0 || c.Server.BootstrapExpect != 0 || c.Server.Autopilot.CleanupDeadServers ||
		sc.PodMaxBackoff.Value() != 0 || sc.EventLimit != 0 || len(sc.SystemClassGroups) != 0 || sc.Preemption.Enabled {
		t.Errorf("a zero that was written became a default: %+v %+v", c.Server, sc)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(minimal)
	f.Add("server \"x\" { raft { } }\nworker = 5\n")
	f.Add("join = [for x in y : x]\nname = \"${a}\"")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "berth.hcl")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Skip()
		}
		if _, err := Load(file); err != nil && err.Error() == "" {
			t.Error("an error that says nothing")
		}
	})
}

// Who is to join others does not found a cluster of its own beside theirs, unless
// the file says so.
func TestJoiningFoundsNothing(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int
	}{
		{"", 1},
		{"join = [\"10.0.0.1\"]", 0},
		{"join = [\"10.0.0.1\"]\nserver { bootstrap_expect = 1 }", 1},
		{"join = [\"10.0.0.1\"]\nserver { bootstrap_expect = 3 }", 3},
	} {
		dir := write(t, map[string]string{"a.hcl": minimal, "b.hcl": tt.text + "\n"})
		c, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if c.Server.BootstrapExpect != tt.want {
			t.Errorf("%q founds a cluster of %d, want %d", tt.text, c.Server.BootstrapExpect, tt.want)
		}
	}
}
