package runtime

// Devices are what the plugins of a container's devices want it to have.
type Devices struct {
	Env         []string // KEY=VALUE
	Mounts      []Mount  // of no volume
	Nodes       []DeviceNode
	Annotations map[string]string
	// CDI are names of devices that the runtime finds in the specifications of the container device interface.
	CDI []string
}

// DeviceNode is a device of the host, and where the container has it.
type DeviceNode struct {
	HostPath, Path string
	Permissions    string // of r, w and m
}
