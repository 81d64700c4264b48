package worker

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// maxImages is how many images a node reports, the largest first, and maxImageNames how many names of each, as in
	// Kubernetes: the list is part of a replicated object.
	maxImages     = 50
	maxImageNames = 5
	// imagesReportIdle is how often at most the node's status is reported for nothing but other images.
	imagesReportIdle = time.Minute
)

// NodeImages is what a node reports of its runtime's images: the same list whatever the order in which the runtime names
// them. A runtime without images reports none.
func NodeImages(rt runtime.Runtime) ([]corev1.ContainerImage, error) {
	images, err := allImages(rt)
	return largest(images), err
}

// allImages are the runtime's.
func allImages(rt runtime.Runtime) ([]runtime.Image, error) {
	lister, ok := rt.(runtime.ImageLister)
	if !ok {
		return nil, nil
	}
	return lister.Images()
}

func largest(images []runtime.Image) []corev1.ContainerImage {
	var out []corev1.ContainerImage
	for _, i := range images {
		if len(i.Names) == 0 {
			continue // no pod can name it
		}
		names := slices.Sorted(slices.Values(i.Names))
		out = append(out, corev1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: i.SizeBytes})
	}
	slices.SortFunc(out, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Names[0], b.Names[0]))
	})
	return out[:min(len(out), maxImages)]
}

func sameImages(a, b []corev1.ContainerImage) bool { return apiequality.Semantic.DeepEqual(a, b) }
