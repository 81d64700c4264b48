package config

import (
	"encoding/base64"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// checker reports mistakes at the place where an option was written.
type checker struct {
	ps  *problems
	src *sources
}

func (k checker) fail(option, format string, args ...any) { k.failAt(option, option, format, args...) }

// failAt reports a mistake in an option where another one was written, which brings it about.
func (k checker) failAt(place, option, format string, args ...any) {
	r := k.src.ranges[place] // without a file if the option was not written
	k.ps.at(r, option+": "+format, args...)
}

func (c *Config) validate(ps *problems) {
	k := checker{ps: ps, src: c.src}
	k.values(reflect.ValueOf(c).Elem(), "")
	c.validateAgent(k)
	c.validateSecurity(k)
	if c.Server.Enabled {
		c.validateServer(k)
	}
	if c.Worker.Enabled {
		c.validateWorker(k)
	}
	if !c.Server.Enabled && !c.Worker.Enabled {
		k.ps.add("", 0, "the agent would do nothing; set enabled = true in a server or a worker block")
	}
}

// values checks every duration and amount, wherever it stands.
func (k checker) values(v reflect.Value, prefix string) {
	type checked interface{ check() error }
	for _, o := range optionsOf(v.Type()) {
		f, path := v.Field(o.index), prefix+o.name
		if o.kind == "block" {
			for _, b := range blocks(f) {
				k.values(b, path+".")
			}
			continue
		}
		if c, ok := f.Interface().(checked); ok {
			if err := c.check(); err != nil {
				k.fail(path, "%v", err)
			}
		}
		if m, ok := f.Interface().(map[string]Quantity); ok {
			for _, name := range sortedKeys(m) {
				if err := m[name].check(); err != nil {
					k.fail(path, "%s: %v", name, err)
				}
			}
		}
	}
}

func (c *Config) validateAgent(k checker) {
	if c.Name == "" {
		k.fail("name", "this machine has no host name; give the agent a name")
	} else if problems := validation.IsDNS1123Subdomain(c.Name); len(problems) > 0 {
		k.fail("name", "%q cannot name a node: %s", c.Name, problems[0])
	}
	if c.DataDir == "" {
		const missing = `data_dir: it has no default; write, for example, data_dir = "/var/lib/berth"`
		if k.src.set("data_dir") {
			k.ps.at(k.src.ranges["data_dir"], missing)
		} else {
			k.ps.add(k.src.first, 0, missing)
		}
	}
	if net.ParseIP(c.BindAddr) == nil {
		k.fail("bind_addr", `%q is not an IP address; "0.0.0.0" is every address of this machine`, c.BindAddr)
	}
	if c.AdvertiseAddr != "" {
		if ip := net.ParseIP(c.AdvertiseAddr); ip == nil {
			k.fail("advertise_addr", "%q is not an IP address", c.AdvertiseAddr)
		} else if ip.IsUnspecified() {
			k.fail("advertise_addr", "others cannot reach %q; write the address of this machine that they can", c.AdvertiseAddr)
		}
	}
	for _, addr := range c.Join {
		if err := checkJoin(addr); err != "" {
			k.fail("join", "%s", err)
		}
	}
	if problem, ok := oneOf(c.LogLevel, "trace", "debug", "info", "warn", "error"); !ok {
		k.fail("log_level", "%s", problem)
	}
	c.validatePorts(k)
}

func checkJoin(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, ""
	}
	if host == "" {
		return strconv.Quote(addr) + ` has no host; write "host" or "host:port"`
	}
	if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
		return strconv.Quote(addr) + ` is neither an address nor a host name; write "host" or "host:port"`
	}
	if port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return strconv.Quote(addr) + " has a bad port"
		}
	}
	return ""
}

func (c *Config) validatePorts(k checker) {
	taken := map[int]string{}
	v := reflect.ValueOf(c.Ports).Elem()
	for _, o := range optionsOf(v.Type()) {
		port, path := int(v.Field(o.index).Int()), "ports."+o.name
		switch other, twice := taken[port]; {
		case port < 0 || port > 65535:
			k.fail(path, "%d is not a port; it can be 0 (any free one) to 65535", port)
		case port != 0 && twice && !k.src.set(path):
			k.failAt(other, path, "%d, its default, is what %s is set to; set it as well", port, other)
		case port != 0 && twice:
			k.fail(path, "%d is the port of %s already", port, other)
		default:
			taken[port] = path
		}
	}
}

func (c *Config) validateSecurity(k checker) {
	if key := c.Gossip.EncryptionKey; key != "" {
		raw, err := base64.StdEncoding.DecodeString(key)
		if err != nil || (len(raw) != 16 && len(raw) != 24 && len(raw) != 32) {
			k.fail("gossip.encryption_key", "it is not base64 of 16, 24 or 32 bytes; make one with `berth operator gossip-key`")
		}
	}
	files := []struct {
		option string
		path   Path
	}{{"tls.ca_file", c.TLS.CAFile}, {"tls.cert_file", c.TLS.CertFile}, {"tls.key_file", c.TLS.KeyFile},
		{"tls.ca_key_file", c.TLS.CAKeyFile}, {"auth.token_file", c.Auth.TokenFile}, {"auth.config_file", c.Auth.ConfigFile},
		{"auth.webhook.config_file", c.Auth.Webhook.ConfigFile}, {"server.encryption_config", c.Server.EncryptionConfig}}
	given := 0
	for _, f := range files {
		if f.path == "" {
			continue
		}
		if strings.HasPrefix(f.option, "tls.") && f.option != "tls.ca_key_file" {
			given++
		}
		k.readable(f.option, f.path)
	}
	if given != 0 && given != 3 {
		for _, f := range files[:3] {
			if f.path == "" {
				k.fail("tls", "%s is missing; TLS needs ca_file, cert_file and key_file together", f.option)
			}
		}
	}
	switch {
	case c.TLS.CAKeyFile == "":
	case given == 0:
		k.fail("tls.ca_key_file", "without ca_file, cert_file and key_file this agent makes its CA itself; leave it out")
	case !c.Server.Enabled:
		k.fail("tls.ca_key_file", "only servers sign certificates, and this agent is none; keep the CA's key away from workers")
	}
	if problem, ok := oneOf(c.Auth.Webhook.Version, "v1", "v1beta1"); !ok {
		k.fail("auth.webhook.version", "%s", problem)
	}
	k.atLeastDuration("auth.webhook.cache_ttl", c.Auth.Webhook.CacheTTL, 0)
	c.validateReach(k)
}

// validateReach holds the rule that what others can reach is protected, or that
// somebody has said in writing that it need not be. Connections always are: an
// agent without certificates makes itself a CA, and a gossip key with it.
func (c *Config) validateReach(k checker) {
	ip := net.ParseIP(c.BindAddr)
	if c.Insecure || ip == nil || ip.IsLoopback() || !c.TLS.Enabled() || c.Gossip.EncryptionKey != "" {
		return
	}
	k.fail("bind_addr", "other machines can reach %s, and gossip is not encrypted; "+
		"set gossip.encryption_key (`berth operator gossip-key`), or insecure = true", c.BindAddr)
}

// readable: a file that is named can be opened.
func (k checker) readable(option string, file Path) {
	if file == "" {
		return
	}
	f, err := os.Open(string(file))
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		k.fail(option, "%v", err)
	}
}
