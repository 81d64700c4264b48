package sched

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// ImageLocality: nodes that hold a pod's images already are better, the larger the images and the more nodes hold them.

const (
	mebibyte = 1 << 20
	// Below the one an image is not worth the trouble, above the other, for each container, it is worth no more.
	minImageBytes = 23 * mebibyte
	maxImageBytes = 1000 * mebibyte
)

// imageStore is which node holds which image.
type imageStore struct {
	holders map[string]map[int32]int64 // image name -> slot -> bytes
	version uint64                     // counts changes
}

// put takes in what a node holds now; it says whether that changed.
func (s *imageStore) put(slot int32, before, now *corev1.Node) bool {
	var had, has []corev1.ContainerImage
	if before != nil {
		had = before.Status.Images
	}
	if now != nil {
		has = now.Status.Images
	}
	if len(had) == len(has) && (len(had) == 0 || &had[0] == &has[0] || slices.EqualFunc(had, has, sameImage)) {
		return false
	}
	s.version++
	for _, image := range had {
		for _, name := range image.Names {
			if delete(s.holders[name], slot); len(s.holders[name]) == 0 {
				delete(s.holders, name)
			}
		}
	}
	for _, image := range has {
		for _, name := range image.Names {
			if s.holders == nil {
				s.holders = map[string]map[int32]int64{}
			}
			if s.holders[name] == nil {
				s.holders[name] = map[int32]int64{}
			}
			s.holders[name][slot] = image.SizeBytes
		}
	}
	return true
}

func sameImage(a, b corev1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}

// anyHeld says whether a node holds any image that the class needs.
func (s *imageStore) anyHeld(c *model.Class) bool {
	if len(s.holders) == 0 {
		return false
	}
	for _, name := range c.Images {
		if len(s.holders[name]) > 0 {
			return true
		}
	}
	return false
}

// imageTaste is how a class values what nodes hold of its images. Nodes that hold the same ones of the same sizes are
// alike; what they are worth changes with the number of nodes that hold them, for all of them at once.
type imageTaste struct {
	names      []string // nil: images do not matter
	containers int

	holdings [][]int64 // bytes held of each of names
	at       map[string]int32
	buf      []byte

	scores  []int64 // by index of holdings, right for the version and the number of nodes
	version uint64
	nodes   int
}

// of returns which holdings a node has.
func (t *imageTaste) of(v *View, n *node) int32 {
	t.buf = t.buf[:0]
	held := make([]int64, len(t.names))
	for i, name := range t.names {
		held[i] = v.images.holders[name][n.slot]
		for shift := 0; shift < 64; shift += 8 {
			t.buf = append(t.buf, byte(held[i]>>shift))
		}
	}
	i, ok := t.at[string(t.buf)]
	if !ok {
		if t.at == nil {
			t.at = map[string]int32{}
		}
		i = int32(len(t.holdings))
		t.at[string(t.buf)] = i
		t.holdings = append(t.holdings, held)
	}
	return i
}

// score brings the scores up to date.
func (t *imageTaste) score(v *View) {
	if len(t.scores) == len(t.holdings) && t.version == v.images.version && t.nodes == v.live {
		return
	}
	t.version, t.nodes, t.scores = v.images.version, v.live, t.scores[:0]
	most := int64(maxImageBytes) * int64(t.containers)
	for _, held := range t.holdings {
		var sum int64
		for i, bytes := range held {
			sum += min(model.MulDiv(bytes, int64(len(v.images.holders[t.names[i]])), int64(v.live)), most)
		}
		sum = min(max(sum, minImageBytes), most)
		t.scores = append(t.scores, maxNodeScore*(sum-minImageBytes)/(most-minImageBytes))
	}
}
