package worker

import (
	"runtime/debug"
	"strings"

	"k8s.io/component-base/version"
)

// KubernetesVersion is that of the Kubernetes whose ways the node has: "v1.36.3".
func KubernetesVersion() string {
	if v := version.Get().GitVersion; !strings.HasPrefix(v, "v0.0.0") {
		return v
	}
	// A build without the linker's flags still knows which modules it has.
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path != "k8s.io/api" {
				continue
			}
			if m.Replace != nil {
				m = m.Replace
			}
			if v, ok := strings.CutPrefix(m.Version, "v0."); ok {
				return "v1." + v
			}
		}
	}
	return "v" + version.DefaultKubeBinaryVersion + ".0"
}

// kubeletVersion is what the node says of itself where others look for the version of a kubelet, and compare it: a semantic version,
// Kubernetes' with Berth's own as build metadata.
func kubeletVersion(berth string) string {
	own := strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '.':
			return r
		}
		return '-'
	}, berth)
	out := KubernetesVersion()
	if own = strings.Trim(own, "."); own != "" {
		out += "+berth." + strings.ReplaceAll(own, "..", ".")
	}
	return out
}
