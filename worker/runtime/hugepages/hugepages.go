// Package hugepages knows which pages of memory that are larger than others a machine has, and how Kubernetes and the kernel call them. It must
// never change how many there are.
package hugepages

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/codec"
)

// Dir is where the kernel tells of them: a directory for each size.
const Dir = "/sys/kernel/mm/hugepages"

// Pool is all pages of one size. None may be there.
type Pool struct {
	PageBytes, Pages int64
}

// Read returns the pools of a machine, of Dir. A kernel without any has none.
func Read(dir string) ([]Pool, error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for hugepages: %w", err)
	}
	var out []Pool
	for _, e := range entries {
		size, ok := strings.CutPrefix(e.Name(), "hugepages-")
		kib, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if !ok || err != nil || kib <= 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, fmt.Errorf("counting hugepages: %w", err)
		}
		pages, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("counting hugepages: %w", err)
		}
		out = append(out, Pool{kib << 10, pages})
	}
	return out, nil
}

// Capacity are the pools as resources of a node, in bytes.
func Capacity(pools []Pool) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, p := range pools {
		out[Resource(p.PageBytes)] = *resource.NewQuantity(p.PageBytes*p.Pages, resource.BinarySI)
	}
	return out
}

// Resource is what Kubernetes calls pages of a size: hugepages-2Mi.
func Resource(pageBytes int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(pageBytes, resource.BinarySI).String())
}

// Kernel is what its cgroups call them: 2MB.
func Kernel(pageBytes int64) string {
	units := [...]string{"B", "KB", "MB", "GB", "TB"}
	n := 0
	for ; pageBytes >= 1<<10 && n < len(units)-1; n++ {
		pageBytes >>= 10
	}
	return strconv.FormatInt(pageBytes, 10) + units[n]
}

// Is says whether a resource is hugepages.
func Is(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// Wanted says whether something of hugepages is asked for.
func Wanted(r *corev1.ResourceRequirements) bool {
	if r == nil {
		return false
	}
	// order does not matter: one is enough.
	for name, q := range r.Limits {
		if Is(name) && !q.IsZero() {
			return true
		}
	}
	for name, q := range r.Requests {
		if Is(name) && !q.IsZero() {
			return true
		}
	}
	return false
}

// OfVolume is the size of the pages, in bytes, of a pod's volume in such pages, as a kubelet has it: the one that the medium names, and else the
// only one that its containers ask for.
func OfVolume(pod *corev1.Pod, medium corev1.StorageMedium) (pageBytes int64, err error) {
	named := int64(0)
	if size, ok := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix)); ok {
		var err error
		if named, err = sizeOf(size); err != nil {
			return 0, fmt.Errorf("medium %s names no size of pages: %w", medium, err)
		}
	}
	asked, err := sizes(pod)
	switch {
	case err != nil:
		return 0, err
	case named != 0 && slices.Contains(asked, named):
		return named, nil
	case named != 0, len(asked) == 0:
		return 0, fmt.Errorf("medium %s: no container asks for such pages", medium)
	case len(asked) > 1:
		return 0, fmt.Errorf("medium %s is of one size of pages, and the containers ask for several", medium)
	}
	return asked[0], nil
}

// sizes are those of the pages that a pod or its containers ask for, in bytes, each once.
func sizes(pod *corev1.Pod) ([]int64, error) {
	var out []int64
	lists := []corev1.ResourceList{}
	if s := pod.Spec.Resources; s != nil {
		lists = append(lists, s.Requests)
	}
	for _, of := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range of {
			lists = append(lists, of[i].Resources.Requests)
		}
	}
	for _, list := range lists {
		// order does not matter: they are sorted.
		for name := range list {
			if !Is(name) {
				continue
			}
			size, err := sizeOf(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
			if err != nil {
				return nil, fmt.Errorf("%s names no size of pages: %w", name, err)
			}
			out = append(out, size)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// sizeOf is a size of pages in bytes. Somebody else has written it: there are some that take hours to compute.
func sizeOf(text string) (int64, error) {
	if err := codec.CheckQuantity(text); err != nil {
		return 0, err
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	return q.Value(), nil
}
