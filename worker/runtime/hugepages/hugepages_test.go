package hugepages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A machine's pages are counted in bytes, each size by itself, also where there are none of it.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, pages := range map[string]string{"hugepages-2048kB": "512\n", "hugepages-1048576kB": "0\n", "hugepages-64kB": "3\n", "something": "1\n"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "nr_hugepages"), []byte(pages), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pools, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	has := Capacity(pools)
	want := map[corev1.ResourceName]string{"hugepages-2Mi": "1Gi", "hugepages-1Gi": "0", "hugepages-64Ki": "192Ki"}
	for name, amount := range want {
		if q := has[name]; q.String() != amount {
			t.Errorf("%s: %s, want %s", name, q.String(), amount)
		}
	}
	if len(has) != len(want) {
		t.Errorf("it has %v", has)
	}
	if pools, err := Read(filepath.Join(dir, "none")); pools != nil || err != nil {
		t.Errorf("a kernel without: %v, %v", pools, err)
	}
}

func TestKernel(t *testing.T) {
	for bytes, want := range map[int64]string{2 << 20: "2MB", 1 << 30: "1GB", 16 << 30: "16GB", 64 << 10: "64KB", 32 << 20: "32MB"} {
		if got := Kernel(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}

// Which pages a volume is of.
func TestOfVolume(t *testing.T) {
	asking := func(names ...string) *corev1.Pod {
		list := corev1.ResourceList{"cpu": resource.MustParse("1")}
		for _, name := range names {
			list[corev1.ResourceName(name)] = resource.MustParse("4Gi")
		}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}, {Resources: corev1.ResourceRequirements{Requests: list}}}}}
	}
	for _, c := range []struct {
		pod    *corev1.Pod
		medium corev1.StorageMedium
		want   int64
		wrong  string
	}{
		{asking("hugepages-2Mi"), corev1.StorageMediumHugePages, 2 << 20, ""},
		{asking("hugepages-2Mi", "hugepages-1Gi"), "HugePages-1Gi", 1 << 30, ""},
		{asking("hugepages-2Mi", "hugepages-1Gi"), corev1.StorageMediumHugePages, 0, "several"},
		{asking("hugepages-2Mi"), "HugePages-1Gi", 0, "no container asks"},
		{asking(), corev1.StorageMediumHugePages, 0, "no container asks"},
		{asking("hugepages-2Mi"), "HugePages-much", 0, "no size"},
	} {
		got, err := OfVolume(c.pod, c.medium)
		if got != c.want || (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %d, %v", c.medium, got, err)
		}
	}
}
