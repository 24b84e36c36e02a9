"""Metadata services of clouds, as HTTP servers on loopback that behave like the real ones.

``python -m drainfsm.testing.metadata aws --interrupt-after 20`` runs one by hand.
"""

from drainfsm.testing.metadata.aws import AwsMetadataServer
from drainfsm.testing.metadata.azure import AzureMetadataServer
from drainfsm.testing.metadata.gcp import GcpMetadataServer
from drainfsm.testing.metadata.server import Fault, MetadataServer
from drainfsm.testing.metadata.termination import AlibabaMetadataServer, TencentMetadataServer

__all__ = [
    "AlibabaMetadataServer",
    "AwsMetadataServer",
    "AzureMetadataServer",
    "Fault",
    "GcpMetadataServer",
    "MetadataServer",
    "TencentMetadataServer",
]
