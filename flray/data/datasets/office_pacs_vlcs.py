"""The sets laid out as ``ROOT/<domain>/<class>/*``: Office-Caltech10, Office31, Office-Home, PACS and VLCS."""

from __future__ import annotations

from flray.data.datasets.class_folders import ClassFolders, register_tree

_SAME_THING = {
    "backpack": "back_pack",
    "touring bike": "bike",
    "computer keyboard": "keyboard",
    "laptop": "laptop_computer",
    "laptop 101": "laptop_computer",
    "computer monitor": "monitor",
    "computer mouse": "mouse",
    "coffee mug": "mug",
    "video projector": "projector",
    "headphones 101": "headphones",
}

OFFICE_CALTECH10 = register_tree(
    ClassFolders(
        "office-caltech10",
        "Return Office-Caltech10: 2,533 photos of 10 classes from 4 sources, by default 3x256x256.",
        "the Office-Caltech10 archive that FedBN links to (https://github.com/med-air/FedBN)",
        {"amazon": (), "caltech": ("caltech10", "caltech256"), "dslr": (), "webcam": ()},
        (
            "back_pack",
            "bike",
            "calculator",
            "headphones",
            "keyboard",
            "laptop_computer",
            "monitor",
            "mouse",
            "mug",
            "projector",
        ),
        256,
        _SAME_THING,
    )
)
OFFICE31 = register_tree(
    ClassFolders(
        "office31",
        "Return Office31: 4,110 photos of 31 classes from 3 sources, by default 3x256x256.",
        "https://faculty.cc.gatech.edu/~judy/domainadapt (Saenko et al., 2010)",
        {"amazon": (), "dslr": (), "webcam": ()},
        tuple(
            """
back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer
file_cabinet headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug
paper_notebook pen phone printer projector punchers ring_binder ruler scissors speaker stapler
tape_dispenser trash_can
""".split()  # noqa: SIM905
        ),
        256,
        {"backpack": "back_pack", "laptop": "laptop_computer"},
    )
)
OFFICE_HOME = register_tree(
    ClassFolders(
        "office-home",
        "Return Office-Home: 15,588 pictures of 65 classes in 4 styles, by default 3x256x256.",
        "https://www.hemanthdv.org/officeHomeDataset.html",
        {"art": (), "clipart": (), "product": (), "real-world": ("real",)},
        tuple(
            """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards
Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder
Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug
Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler
Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone ToothBrush Toys
Trash_Can Webcam
""".split()  # noqa: SIM905
        ),
        256,
    )
)
PACS = register_tree(
    ClassFolders(
        "pacs",
        "Return PACS: 9,991 pictures of 7 classes in 4 styles, by default 3x224x224.",
        "https://www.kaggle.com/datasets/nickfratto/pacs-dataset (Li et al., 2017)",
        {"photo": (), "art_painting": ("art",), "cartoon": (), "sketch": ()},
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        224,
    )
)
VLCS = register_tree(
    ClassFolders(
        "vlcs",
        "Return VLCS: 10,729 photos of 5 classes from 4 collections, by default 3x224x224.",
        "the archive that DomainBed fetches (Fang et al., 2013)",
        {
            "caltech": ("caltech101",),
            "labelme": (),
            "pascal": ("voc2007", "pascal2007"),
            "sun": ("sun09",),
        },
        ("bird", "car", "chair", "dog", "person"),
        224,
        {"0": "bird", "1": "car", "2": "chair", "3": "dog", "4": "person"},
    )
)
