package config

import (
	"slices"
	"strings"
	"testing"
)

// controlling is the file of a server that runs the given controllers.
func controlling(controllers string) string {
	return "name = \"s1\"\ndata_dir = \"data\"\nserver {\n  controllers = " + controllers + "\n  enabled = true\n}\n"
}

func TestControllers(t *testing.T) {
	all := ControllerNames()
	if !slices.IsSorted(all) {
		t.Errorf("the names are not in order: %v", all)
	}
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(names, n) })
	}
	for _, tt := range []struct {
		says string
		off  []string
	}{
		{`["*"]`, nil},
		{`["*", "-deployment", "-job"]`, []string{"deployment", "job"}},
		{`["-deployment", "*"]`, []string{"deployment"}},
		{`["*", "deployment"]`, nil},
		{`["deployment", "job"]`, without("deployment", "job")},
		{`["-deployment"]`, all},
		{`[]`, all},
	} {
		c, err := Load(write(t, map[string]string{"berth.hcl": controlling(tt.says)}))
		if err != nil {
			t.Errorf("%s: %v", tt.says, err)
			continue
		}
		if got := c.Server.ControllersOff(); !slices.Equal(got, tt.off) {
			t.Errorf("%s: off are %v, not %v", tt.says, got, tt.off)
		}
	}
	if off := Default().Server.ControllersOff(); off != nil {
		t.Errorf("off are by default %v", off)
	}
	for says, want := range map[string]string{
		`["*", "-scheduler"]`:                `there is no controller "scheduler"`,
		`["*", "-*"]`:                        `there is no controller "*"`,
		`["deployment-controller"]`:          `there is no controller "deployment-controller"`,
		`["*", "deployment", "-deployment"]`: `"deployment" is there twice`,
		`[""]`:                               `there is no controller ""`,
	} {
		if problem := problemsOf(t, controlling(says)); !strings.HasPrefix(problem, "berth.hcl:4: server.controllers: "+want) {
			t.Errorf("%s: %q, which does not say %s", says, problem, want)
		}
	}
}
