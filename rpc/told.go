package rpc

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Told is of which pods a worker was told last, and of which generation of each: by UIDs.
type Told map[string]int64

// Add takes in a pod that the worker is told of.
func (t Told) Add(pod *corev1.Pod) { t[string(pod.UID)] = pod.Generation }

// Sum is the same for the same pods in the same generations, and for no others: 32 bytes.
func (t Told) Sum() []byte {
	uids := make([]string, 0, len(t))
	for uid := range t {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	h := sha256.New()
	var numbers [16]byte
	for _, uid := range uids {
		binary.BigEndian.PutUint64(numbers[:8], uint64(len(uid)))
		binary.BigEndian.PutUint64(numbers[8:], uint64(t[uid]))
		h.Write(numbers[:])
		h.Write([]byte(uid))
	}
	return h.Sum(nil)
}
