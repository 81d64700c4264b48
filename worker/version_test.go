package worker

import (
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// Whatever Berth's own version is, that of the node can be parsed, and compares as Kubernetes'.
func TestKubeletVersion(t *testing.T) {
	for own, want := range map[string]string{"v0.3.1-5-gabc-dirty": "+berth.v0.3.1-5-gabc-dirty", "dev": "+berth.dev", "a_b/c": "+berth.a-b-c", "": "", "..x..": "+berth.x"} {
		got := kubeletVersion(own)
		v, err := utilversion.ParseSemantic(got)
		if err != nil || v.Major() != 1 || v.Minor() != 36 || !strings.HasSuffix(got, want) || want == "" && strings.Contains(got, "+") {
			t.Errorf("of %q it is %q: %v, %v", own, got, v, err)
		}
	}
}
