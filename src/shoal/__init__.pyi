"""The public names of the package, and where each is from; `__init__.py` loads them when they are asked for."""

from .algorithms import (
    APFL as APFL,
    CFL as CFL,
    IFCA as IFCA,
    IFCAMIR as IFCAMIR,
    MRMTL as MRMTL,
    PACFL as PACFL,
    RDPCFL as RDPCFL,
    ByGroup as ByGroup,
    ClusterSizeFloor as ClusterSizeFloor,
    CoordinateMedian as CoordinateMedian,
    Ditto as Ditto,
    EarlyStopping as EarlyStopping,
    FedAvg as FedAvg,
    FedAvgStart as FedAvgStart,
    FedBN as FedBN,
    FedEM as FedEM,
    FedOpt as FedOpt,
    FedProx as FedProx,
    FedRC as FedRC,
    FedRep as FedRep,
    FedSoft as FedSoft,
    FeSEM as FeSEM,
    FineTuning as FineTuning,
    GroupPrivacy as GroupPrivacy,
    HypCluster as HypCluster,
    IFCAWithinLimit as IFCAWithinLimit,
    LocalOnly as LocalOnly,
    MultiKrum as MultiKrum,
    OneShotClustering as OneShotClustering,
    OneShotStart as OneShotStart,
    PerFedAvg as PerFedAvg,
    Pooling as Pooling,
    PricedChoice as PricedChoice,
    PrivateMeans as PrivateMeans,
    Redraw as Redraw,
    RiskAwareChoice as RiskAwareChoice,
    Scaffold as Scaffold,
    ServerOnly as ServerOnly,
    ServerStart as ServerStart,
    SharedBody as SharedBody,
    TrimmedMean as TrimmedMean,
)
from .attacks import (
    Gap as Gap,
    LossHistograms as LossHistograms,
    LossThreshold as LossThreshold,
    Population as Population,
    ReferenceScores as ReferenceScores,
    ShadowModelAttack as ShadowModelAttack,
    ShadowModels as ShadowModels,
    logit_confidence as logit_confidence,
)
from .audit import RedTeam as RedTeam
from .audit.attacked_records import AuditRecords as AuditRecords
from .audit.audit import (
    Audit as Audit,
    audit_records as audit_records,
)
from .config.schema import (
    Config as Config,
    read_config as read_config,
)
from .control import (
    Knob as Knob,
    LimitController as LimitController,
    RiskPrediction as RiskPrediction,
)
from .core.errors import (
    InputError as InputError,
    ShoalError as ShoalError,
)
from .core.randomness import Stream as Stream
from .data import (
    ClientArrays as ClientArrays,
    Columns as Columns,
    Event as Event,
    Examples as Examples,
    Federation as Federation,
    Group as Group,
    ImageDataset as ImageDataset,
    MislabelledCanaries as MislabelledCanaries,
    Partition as Partition,
    Preferences as Preferences,
    Presence as Presence,
    TableDataset as TableDataset,
    TextDataset as TextDataset,
    draw_preferences as draw_preferences,
    load_dataset as load_dataset,
    partition_dataset as partition_dataset,
)
from .defenses import (
    CCL as CCL,
    DPSGD as DPSGD,
    L2 as L2,
    Augmentation as Augmentation,
    Defense as Defense,
    Dropout as Dropout,
    Flooding as Flooding,
    LaplaceNoise as LaplaceNoise,
    Mixup as Mixup,
    NormClipping as NormClipping,
    RelaxLoss as RelaxLoss,
    ShorterTraining as ShorterTraining,
)
from .engine import (
    Engine as Engine,
    LocalSGD as LocalSGD,
    TorchOptimizer as TorchOptimizer,
    Training as Training,
)
from .forgetting import (
    Continue as Continue,
    Exact as Exact,
    FedEraser as FedEraser,
    ProjectedGradientAscent as ProjectedGradientAscent,
)
from .models import (
    Features as Features,
    Model as Model,
    Shape as Shape,
    TextShape as TextShape,
    VectorShape as VectorShape,
    create_model as create_model,
    squared_error as squared_error,
)
from .property import (
    PropertyAttack as PropertyAttack,
    PropertyPartition as PropertyPartition,
    PropertySchedule as PropertySchedule,
    active_property_attacker as active_property_attacker,
    partition_by_property as partition_by_property,
)
from .runs.audits.audit_leaver import audit_leaver as audit_leaver
from .runs.audits.audit_members import (
    audit_scores as audit_scores,
    audit_trace as audit_trace,
)
from .runs.audits.audit_run import audit_run as audit_run
from .runs.comparison import (
    Comparison as Comparison,
    compare as compare,
)
from .runs.result import (
    Result as Result,
    load as load,
)
from .runs.run import (
    Run as Run,
    run as run,
    simulate as simulate,
)
from .runs.run_training import MeasurementError as MeasurementError
from .runs.sinks import TensorBoard as TensorBoard
from .simulation.distillation import Distillation as Distillation
from .simulation.play import EngineSettings as EngineSettings
from .simulation.simulation import Simulation as Simulation

__version__: str
