// Package sample is what a node and its pods use at one moment, as the node's
// worker measures it, and how that travels: worker to server, server to server.
// It must never enter the log, and nothing that is replicated may depend on it.
//
// A worker can say anything: Decode takes only what is bounded and in order, and
// whoever shows a sample asks the state which pods are the node's.
package sample

import (
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/wire"
)

// Bounds of one node's sample. What is said beyond them is not believed.
const (
	// MaxBytes bounds what a sample takes on its way and in a server's memory.
	MaxBytes = 192 << 10
	// MaxPods and MaxContainers are of one node, whatever its capacity.
	MaxPods       = 2048
	MaxContainers = 4096
	// MaxAmount is the most of anything that one container, or a node, can use:
	// 2^50 bytes, or as many billionths of a processor, which are a million
	// processors. The sum of all containers of a node fits into 63 bits.
	MaxAmount = 1 << 50
	// MaxWindow is the longest time over which processor time may have been counted.
	MaxWindow = time.Hour

	maxName = 253
)

// Node is what a node uses, and each of its pods that runs. It is immutable once
// it was decoded or encoded.
type Node struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // it tells the encoder

	// WindowNano is the time over which processor time was counted, up to the moment
	// of the sample.
	WindowNano int64
	Used       Amount
	Pods       []Pod
}

// Pod is what the containers of a pod use. Those of which nothing is known yet
// are missing.
type Pod struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // it tells the encoder

	UID        string
	Containers []Container
}

// Container is what one container uses.
type Container struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // it tells the encoder

	Name string
	Used Amount
}

// Amount is what is used: of processors in billionths of one, on average over the
// window, and of memory what cannot be taken back at once (the working set).
type Amount struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // it tells the encoder

	NanoCPU     int64
	MemoryBytes int64
}

// ErrInvalid is wrapped by the errors of Decode.
var ErrInvalid = errors.New("not a sample")

// Encode writes a sample. One that Decode would refuse is an error.
func (n *Node) Encode() ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	b, err := msgpack.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("encoding a sample: %w", err)
	}
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, and may have %d", ErrInvalid, len(b), MaxBytes)
	}
	return b, nil
}

// Decode reads a sample from whoever says that it is one.
func Decode(b []byte) (*Node, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, and may have %d", ErrInvalid, len(b), MaxBytes)
	}
	if err := wire.Check(b, 8+8*MaxPods+8*MaxContainers); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	n := new(Node)
	if err := msgpack.Unmarshal(b, n); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return n, n.check()
}

func (n *Node) check() error {
	if n.WindowNano <= 0 || n.WindowNano > int64(MaxWindow) {
		return fmt.Errorf("%w: a window of %d ns", ErrInvalid, n.WindowNano)
	}
	if err := n.Used.check(); err != nil {
		return fmt.Errorf("%w: of the node", err)
	}
	if len(n.Pods) > MaxPods {
		return fmt.Errorf("%w: %d pods, and %d are the most", ErrInvalid, len(n.Pods), MaxPods)
	}
	containers := 0
	pods := make(map[string]bool, len(n.Pods))
	for i := range n.Pods {
		p := &n.Pods[i]
		if p.UID == "" || len(p.UID) > maxName || pods[p.UID] {
			return fmt.Errorf("%w: a pod with no UID, one that is too long, or twice the same", ErrInvalid)
		}
		pods[p.UID] = true
		if containers += len(p.Containers); containers > MaxContainers {
			return fmt.Errorf("%w: more than %d containers", ErrInvalid, MaxContainers)
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pod) check() error {
	names := make(map[string]bool, len(p.Containers))
	for i := range p.Containers {
		c := &p.Containers[i]
		if c.Name == "" || len(c.Name) > maxName || names[c.Name] {
			return fmt.Errorf("%w: a container with no name, one that is too long, or twice the same", ErrInvalid)
		}
		names[c.Name] = true
		if err := c.Used.check(); err != nil {
			return err
		}
	}
	return nil
}

func (a Amount) check() error {
	if a.NanoCPU < 0 || a.NanoCPU > MaxAmount || a.MemoryBytes < 0 || a.MemoryBytes > MaxAmount {
		return fmt.Errorf("%w: %d billionths of a processor and %d bytes of memory", ErrInvalid, a.NanoCPU, a.MemoryBytes)
	}
	return nil
}
