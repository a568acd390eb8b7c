"""A small convolutional classifier: batch normalization, dropout, SGD with momentum, epochs."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images, classes = torch.randn(30, 1, 8, 8), torch.randint(5, (30,))
loader = DataLoader(TensorDataset(images, classes), batch_size=8, shuffle=True, drop_last=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.bn(self.conv(x))), 2)
        return self.fc(self.dropout(torch.flatten(x, 1)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
for _ in range(4):
    for x, y in loader:
        logits = model(x)
        loss = functional.cross_entropy(logits, y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
