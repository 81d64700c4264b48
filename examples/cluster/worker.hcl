# A worker. Each has a name, an address and a certificate of its own; the rest can
# be the same on all.

name      = "worker-1"
data_dir  = "/var/lib/berth"
bind_addr = "10.0.0.11"
join      = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

worker {
  enabled = true
  labels  = { disk = "ssd" }

  # Kept for the system and the agent itself.
  reserved {
    cpu    = "500m"
    memory = "512Mi"
  }
}

gossip {
  encryption_key = "make one with: berth operator gossip-key"
}

tls {
  ca_file   = "/etc/berth/tls/ca.pem"
  cert_file = "/etc/berth/tls/worker-worker-1.pem"
  key_file  = "/etc/berth/tls/worker-worker-1-key.pem"
}
