package config

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestUsable: what the machine does not give is told with the option and its line, and so is what others have found.
func TestUsable(t *testing.T) {
	dir := write(t, map[string]string{
		"file":      "",
		"berth.hcl": "name = \"s1\"\ndata_dir = \"file/data\"\nbind_addr = \"192.0.2.77\"\ninsecure = true\nserver {\n  enabled = true\n  max_log_version = 7\n}\n",
		"good.hcl":  "name = \"s1\"\ndata_dir = \"new/data\"\nserver { enabled = true }\n",
	})
	c, err := Load(filepath.Join(dir, "berth.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if err := c.Usable(OptionError{"server.max_log_version", errors.New("too new")}); err != nil {
		got = strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "")
	}
	const want = "berth.hcl:2: data_dir: stat file/data/server: not a directory\n" +
		"berth.hcl:3: bind_addr: no interface of this machine has the address 192.0.2.77; \"0.0.0.0\" is every address of this machine\n" +
		"berth.hcl:7: server.max_log_version: too new"
	if got != want {
		t.Errorf("want\n%s\ngot\n%s", want, got)
	}
	if c, err = Load(filepath.Join(dir, "good.hcl")); err != nil {
		t.Fatal(err)
	}
	if err := c.Usable(); err != nil {
		t.Errorf("a directory that can be made: %v", err)
	}
	if made, err := filepath.Glob(filepath.Join(dir, "new")); err != nil || len(made) > 0 {
		t.Errorf("it made %v, %v", made, err)
	}
}
