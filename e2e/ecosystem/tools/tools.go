// Package tools names the programs of others that are tried on Berth: what each is built of, in which version, and how. It must never be
// part of the product.
package tools

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
)

// Tool is a program of others, which is built from its Go module as it is.
type Tool struct {
	Name string
	// Module and Version are its own; a module for building it, in Dir, names them too, and what it requires.
	Module, Version string
	Dir             string
	// Package is what is built there, with Args.
	Package string
	Args    []string
	// Linked: it may need the machine's libraries, as Berth does, and so shares with Berth what is built. Others are put in images.
	Linked bool
}

// withoutClouds leaves out Prometheus' discovery of what is not Kubernetes.
const withoutClouds = "remove_all_sd,enable_kubernetes_sd"

// All is every tool. Versions are named here.
var All = []Tool{
	{Name: "helm3", Module: "helm.sh/helm/v3", Version: "v3.22.0", Dir: "tools/helm", Package: "helm.sh/helm/v3/cmd/helm"},
	{Name: "helm4", Module: "helm.sh/helm/v4", Version: "v4.3.1", Dir: "tools/helm", Package: "helm.sh/helm/v4/cmd/helm"},
	{Name: "operator", Module: "sigs.k8s.io/controller-runtime", Version: "v0.25.2", Dir: "operator", Package: "."},
	{Name: "cert-manager", Module: "github.com/cert-manager/cert-manager", Version: "v1.20.2", Dir: "tools/certmanager", Package: "."},
	{Name: "kwok", Module: "sigs.k8s.io/kwok", Version: "v0.7.0", Dir: "tools/kwok", Package: "sigs.k8s.io/kwok/cmd/kwok"},
	{Name: "kubectl", Module: "k8s.io/kubernetes", Version: "v1.36.3", Dir: "../kubernetes", Package: "k8s.io/kubernetes/cmd/kubectl",
		Linked: true, Args: []string{"-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 " +
			"-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"}},
	{Name: "prometheus", Module: "github.com/prometheus/prometheus", Version: "v0.316.0", Dir: "tools/prometheus",
		Package: "github.com/prometheus/prometheus/cmd/prometheus", Args: []string{"-tags", withoutClouds}},
	{Name: "promtool", Module: "github.com/prometheus/prometheus", Version: "v0.316.0", Dir: "tools/prometheus",
		Package: "github.com/prometheus/prometheus/cmd/promtool", Args: []string{"-tags", withoutClouds}},
}

// Build builds the tool into a folder; root is where the modules are.
func (t *Tool) Build(root, into string, jobs int) error {
	args := []string{"build", "-p", fmt.Sprint(jobs), "-ldflags", "-s -w"}
	args = append(append(args, t.Args...), "-o", filepath.Join(into, t.Name), t.Package)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = filepath.Join(root, t.Dir), os.Environ()
	if !t.Linked {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: it could not be built: %w", t.Name, t.Version, err)
	}
	return t.Check(into)
}

// Check is an error unless the program is there, of the version that it should have.
func (t *Tool) Check(folder string) error {
	info, err := buildinfo.ReadFile(filepath.Join(folder, t.Name))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s %s: it is not built", t.Name, t.Version)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	// The main module is that of the package which was built.
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == t.Module {
			if m.Version != t.Version {
				return fmt.Errorf("%s: it is built of %s %s; its version should be %s: %s/go.mod names another", t.Name, m.Path, m.Version, t.Version, t.Dir)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: nothing of %s is in it", t.Name, t.Module)
}
