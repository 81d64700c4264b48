package devices

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// askTimeout bounds what a plugin is asked, startTimeout what it does before a container starts.
	askTimeout, startTimeout = 10 * time.Second, 30 * time.Second
	// maxAnswerBytes bounds an answer.
	maxAnswerBytes = 4 << 20
)

// plugin is one that is connected.
type plugin struct {
	conn   *grpc.ClientConn
	client pluginapi.DevicePluginClient
	// preStart and prefers are what it wants to be asked.
	preStart, prefers bool
}

// connect asks a plugin what it is and begins to hear from it. It takes the place of another one of the same resource.
func (r *Registry) connect(ctx, running context.Context, watching *sync.WaitGroup, q *pluginapi.RegisterRequest) error {
	r.mu.Lock()
	_, known := r.resources[q.ResourceName]
	full := !known && len(r.resources) >= maxResources
	r.mu.Unlock()
	if full {
		return fmt.Errorf("the node has %d kinds of devices, and may have no more", maxResources)
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(r.opts.Dir, q.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return err
	}
	p := &plugin{conn: conn, client: pluginapi.NewDevicePluginClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	options, err := p.client.GetDevicePluginOptions(ctx, new(pluginapi.Empty), grpc.WaitForReady(true))
	if err != nil {
		return errors.Join(fmt.Errorf("asking it for its options: %w", err), conn.Close())
	}
	p.preStart, p.prefers = options.PreStartRequired, options.GetPreferredAllocationAvailable
	r.mu.Lock()
	k := r.resources[q.ResourceName]
	if k == nil {
		k = newKind(time.Now())
		r.resources[q.ResourceName] = k
	}
	before := k.plugin
	k.plugin = p
	k.awaited, k.over = false, false
	for id := range k.devices {
		k.devices[id] = &pluginapi.Device{ID: id, Health: pluginapi.Unhealthy} // until it says otherwise
	}
	r.mu.Unlock()
	if before != nil {
		_ = before.conn.Close() // its watch ends, and finds that it is not the one any more
	}
	r.log.Info("a device plugin has registered", "resource", q.ResourceName, "endpoint", q.Endpoint)
	watching.Go(func() { r.watch(running, q.ResourceName, p) })
	return nil
}

// watch hears from a plugin until it is gone.
func (r *Registry) watch(ctx context.Context, name string, p *plugin) {
	defer func() { _ = p.conn.Close() }()
	err := r.listen(ctx, name, p)
	r.mu.Lock()
	k := r.resources[name]
	gone := k.plugin == p
	if gone {
		k.plugin, k.goneAt = nil, time.Now()
	}
	r.mu.Unlock()
	if gone && ctx.Err() == nil {
		r.log.Warn("a device plugin is gone; its devices count as not healthy until it registers again", "resource", name, "reason", err)
		r.opts.Changed()
	}
}

func (r *Registry) listen(ctx context.Context, name string, p *plugin) error {
	stream, err := p.client.ListAndWatch(ctx, new(pluginapi.Empty))
	if err != nil {
		return err
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(list.Devices) > maxDevices {
			return fmt.Errorf("it has %d devices, and may have %d", len(list.Devices), maxDevices)
		}
		devices := make(map[string]*pluginapi.Device, len(list.Devices))
		for _, d := range list.Devices {
			devices[d.ID] = d
		}
		r.mu.Lock()
		k := r.resources[name]
		if k.plugin != p {
			r.mu.Unlock()
			return errors.New("another one has taken its place")
		}
		k.devices = devices
		err = r.save()
		r.mu.Unlock()
		if err != nil {
			r.log.Warn("which devices there are cannot be kept", "error", err)
		}
		r.opts.Changed()
	}
}
